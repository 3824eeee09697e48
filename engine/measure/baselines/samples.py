"""A plain PyTorch loop with torchvision's MNIST, as PyTorch's own examples write it.

The same model, augmentation, optimizer and schedule as Seedbed's default, written with what
torchvision has for it. `benchmark.py` starts it with its settings as JSON.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from project.models.cnn import CNN
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def loader(settings: dict) -> DataLoader:
    """Return the loader of the training set."""
    transform = transforms.Compose(
        [
            transforms.RandomAffine(
                degrees=10,
                translate=(2 / 28, 2 / 28),
                interpolation=transforms.InterpolationMode.BILINEAR,
            ),
            transforms.ToTensor(),
            transforms.Normalize((0.1307,), (0.3081,)),
        ]
    )
    workers = settings["workers"]
    return DataLoader(
        datasets.MNIST(settings["data"], train=True, transform=transform),
        batch_size=settings["batch_size"],
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )


def main() -> None:
    """Train and write down when each step ends."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    train = loader(settings)
    model = CNN(**settings["model"])
    optimizer = torch.optim.AdamW(model.parameters(), **settings["optimizer"])
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings["optimizer"]["lr"], total_steps=10**7, pct_start=0.25
    )
    ends = open(Path(settings["out"]) / "steps.txt", "w", buffering=1)  # a line at once
    for epoch in itertools.count():
        for x, y in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(time.monotonic(), file=ends)
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
