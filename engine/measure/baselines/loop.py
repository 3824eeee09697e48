"""A typical training loop; `benchmark.py` starts it with its settings as JSON.

With `workers`: a plain loop over torchvision's MNIST, with Seedbed's default
augmentation and schedule. Otherwise: a raw loop over random tensors in memory. Neither
logs or records.
"""

import itertools
import json
import sys
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from clock import Clock
from project.models.cnn import CNN
from project.models.dense import Dense
from project.models.gpt import GPT
from project.models.recurrent import Recurrent
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def loader(settings: dict) -> DataLoader:
    """Return a loader of torchvision's MNIST, augmented, as in PyTorch's own
    examples."""
    bilinear = transforms.InterpolationMode.BILINEAR
    affine = transforms.RandomAffine(10, (2 / 28, 2 / 28), interpolation=bilinear)
    normalize = transforms.Normalize((0.1307,), (0.3081,))
    transform = transforms.Compose([affine, transforms.ToTensor(), normalize])
    digits = datasets.MNIST(settings["data"], train=True, transform=transform)
    workers = {
        "num_workers": settings["workers"],
        "persistent_workers": settings["workers"] > 0,
    }
    return DataLoader(
        digits, settings["batch_size"], shuffle=True, drop_last=True, **workers
    )


def in_memory(settings: dict, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """Return one epoch of random batches."""
    model, size = settings["model"], settings["batch_size"]
    if settings["workload"] == "gpt":
        tokens = torch.randint(model["vocabulary"], (16 * size, model["context"] + 1))
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
    elif settings["workload"] == "cnn":
        inputs, targets = (
            torch.randn(4000, *model["input_shape"]),
            torch.randint(10, (4000,)),
        )
    elif settings["workload"] == "dense":
        inputs = torch.randn(1000, model["inputs"])
        targets = torch.randint(model["outputs"], (1000,))
    else:
        inputs, targets = torch.rand(4000, *model["input_shape"]), torch.rand(4000, 1)
    if settings.get("channels_last"):
        inputs = inputs.to(memory_format=torch.channels_last)
    inputs, targets = inputs.to(device), targets.to(device)
    return list(zip(inputs.split(size), targets.split(size), strict=True))[
        : len(inputs) // size
    ]


def loss_of_tokens(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    device = torch.device(settings.get("device", "cpu"))
    kind, is_raw = settings["workload"], "workers" not in settings
    network = {"cnn": CNN, "gpt": GPT, "lstm": Recurrent, "dense": Dense}[kind]
    model: nn.Module = network(**settings["model"]).to(device)
    if settings.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), **settings["optimizer"])
    lr = settings["optimizer"]["lr"]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, 10**7, pct_start=0.25)
    precision = settings.get("precision", "float32")
    dtype = torch.bfloat16 if precision == "float32" else getattr(torch, precision)
    lower = torch.autocast(device.type, dtype, precision != "float32")
    scaler = torch.amp.GradScaler(device.type, enabled=precision == "float16")
    run = torch.compile(model) if settings.get("compile") else model
    smooth = partial(F.cross_entropy, label_smoothing=0.1)
    criterion = {
        "cnn": smooth,
        "gpt": loss_of_tokens,
        "lstm": F.mse_loss,
        "dense": F.cross_entropy,
    }[kind]
    batches = in_memory(settings, device) if is_raw else loader(settings)
    clock = Clock(Path(settings["out"]) / "steps.txt")
    for step, (x, y) in enumerate(
        itertools.chain.from_iterable(itertools.repeat(batches))
    ):
        with lower:
            loss = criterion(run(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if not is_raw:
            schedule.step()
        if step % 20 == 0:
            float(loss)  # a loop that logs waits for its GPU
        clock(device)


if __name__ == "__main__":
    main()
