"""A plain PyTorch loop with torchvision's MNIST, as PyTorch's own examples write it.

The same model, augmentation, optimizer and schedule as Seedbed's default, written with what
torchvision has for it. `benchmark.py` starts it with its settings as JSON.
"""

import json
import signal
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from project.models.cnn import CNN
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def loaders(settings: dict) -> tuple[DataLoader, DataLoader]:
    """Return the loaders of the training and the test set."""
    normalize = [transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))]
    shift_and_rotate = transforms.RandomAffine(
        degrees=10,
        translate=(2 / 28, 2 / 28),
        interpolation=transforms.InterpolationMode.BILINEAR,
    )
    train = datasets.MNIST(
        settings["data"], train=True, transform=transforms.Compose([shift_and_rotate, *normalize])
    )
    test = datasets.MNIST(settings["data"], train=False, transform=transforms.Compose(normalize))
    workers = settings["workers"]
    return (
        DataLoader(
            train,
            batch_size=settings["batch_size"],
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            persistent_workers=workers > 0,
        ),
        DataLoader(test, batch_size=500, num_workers=workers),
    )


@torch.no_grad()
def accuracy(model: nn.Module, test: DataLoader) -> float:
    """Return the fraction of the test set that the model gets right."""
    model.eval()
    right = sum((model(x).argmax(dim=1) == y).sum().item() for x, y in test)
    model.train()
    return right / len(test.dataset)


def main() -> None:
    """Train, and write down when each step ended and how good the model is."""
    settings = json.loads(sys.argv[1])
    # Told to end, it ends in order, as the others do: that takes memory, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(settings["seed"])
    train, test = loaders(settings)
    model = CNN(**settings["model"])
    optimizer = torch.optim.AdamW(model.parameters(), **settings["optimizer"])
    steps = settings["steps"] or settings["epochs"] * len(train)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, settings["optimizer"]["lr"], total_steps=steps, pct_start=0.25
    )
    out, done = Path(settings["out"]), 0
    ends = open(out / "steps.txt", "w", buffering=1)  # a line at once
    while done < steps:
        for x, y in train:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            print(time.monotonic(), file=ends)
            done += 1
            if done % 20 == 0:
                print(f"step {done} loss {loss.item():.4f}")
            if done == steps:
                break
    (out / "found.json").write_text(json.dumps({"test_accuracy": accuracy(model, test)}))


if __name__ == "__main__":
    main()
