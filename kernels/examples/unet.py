"""Train a small U-Net in a bare loop, twice, under deterministic algorithms.

usage: python examples/unet.py [--device cpu|cuda]

PyTorch refuses it: its decoder takes the places of the maxima from the encoder
(`nn.MaxUnpool2d`, as in SegNet), on a GPU it also resizes with antialiasing. With the
kernels, both trainings have the same bits.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torch_deterministic_kernels as tdk


class UNet(nn.Module):
    """A U-Net of two levels, of images (N, 3, H, W) with even sizes, to classes (N, 5,
    H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU())
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.bottom = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
        self.unpool = nn.MaxUnpool2d(2)
        self.decoder = nn.Conv2d(32, 5, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        features = self.encoder(images)
        pooled, places = self.pool(features)
        context = self.bottom(pooled)
        small = F.interpolate(
            context, scale_factor=0.5, mode="bilinear", antialias=True
        )
        context = context + F.interpolate(small, size=context.shape[2:], mode="bicubic")
        return self.decoder(torch.cat([features, self.unpool(context, places)], 1))


def train(device: str, steps: int = 5) -> list[Tensor]:
    """Return the weights after some steps on random images; all draws begin with seed
    0."""
    torch.manual_seed(0)
    model = UNet().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        images = torch.rand(4, 3, 32, 32, device=device)
        labels = torch.randint(0, 5, (4, 32, 32), device=device)
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [weight.detach().clone() for weight in model.parameters()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    device = parser.parse_args().device
    torch.use_deterministic_algorithms(True)
    try:
        train(device)
    except RuntimeError as error:
        print(f"without the kernels: {str(error).split(', but')[0]}")
    with tdk.enable():
        first = train(device)
        second = train(device)
    is_same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    print(
        f"with the kernels: {'the same bits twice' if is_same else 'OTHER BITS'};"
        " replaced:"
    )
    for operation, caller in tdk.replaced():
        print(f"  {operation}, {caller}")


if __name__ == "__main__":
    main()
