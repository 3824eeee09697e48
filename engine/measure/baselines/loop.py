"""A typical training loop; `benchmark.py` starts it with its settings as JSON.

With `workers`: a plain loop over torchvision's MNIST, with Seedbed's default augmentation and
schedule. Otherwise: a raw loop over random tensors in memory. Neither logs or records.
"""

import itertools
import json
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from project.models.cnn import CNN
from project.models.recurrent import Recurrent
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def loader(settings: dict) -> DataLoader:
    """Return a loader of torchvision's MNIST, augmented, as in PyTorch's own examples."""
    bilinear = transforms.InterpolationMode.BILINEAR
    affine = transforms.RandomAffine(10, (2 / 28, 2 / 28), interpolation=bilinear)
    normalize = transforms.Normalize((0.1307,), (0.3081,))
    transform = transforms.Compose([affine, transforms.ToTensor(), normalize])
    digits = datasets.MNIST(settings["data"], train=True, transform=transform)
    workers = {"num_workers": settings["workers"], "persistent_workers": settings["workers"] > 0}
    return DataLoader(digits, settings["batch_size"], shuffle=True, drop_last=True, **workers)


def in_memory(settings: dict, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return one epoch of random batches."""
    shape = settings["model"]["input_shape"]
    if settings["workload"] == "cnn":
        inputs, targets = torch.randn(4000, *shape), torch.randint(10, (4000,))
    else:
        inputs, targets = torch.rand(4000, *shape), torch.rand(4000, 1)
    if settings.get("channels_last"):
        inputs = inputs.to(memory_format=torch.channels_last)
    size = settings["batch_size"]
    inputs, targets = inputs.to(device), targets.to(device)
    return list(zip(inputs.split(size), targets.split(size), strict=True))[: len(inputs) // size]


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    device = torch.device(settings.get("device", "cpu"))
    is_cnn, is_raw = settings["workload"] == "cnn", "workers" not in settings
    model: nn.Module = (CNN if is_cnn else Recurrent)(**settings["model"]).to(device)
    if settings.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), **settings["optimizer"])
    lr = settings["optimizer"]["lr"]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, 10**7, pct_start=0.25)
    lower = torch.autocast(device.type, torch.bfloat16, settings.get("precision") == "bfloat16")
    run = torch.compile(model) if settings.get("compile") else model
    criterion = partial(F.cross_entropy, label_smoothing=0.1) if is_cnn else F.mse_loss
    batches = in_memory(settings, device) if is_raw else loader(settings)
    ends = open(Path(settings["out"]) / "steps.txt", "w", buffering=1)  # line-buffered
    for x, y in itertools.chain.from_iterable(itertools.repeat(batches)):
        with lower:
            loss = criterion(run(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if not is_raw:
            schedule.step()
        print(time.monotonic(), file=ends)


if __name__ == "__main__":
    main()
