"""A raw training loop: tensors in memory, eager, nothing but the steps.

No loader, no augmentation, no logging, no record. `benchmark.py` starts it with its settings as
JSON, and stops it.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from project.models.cnn import CNN
from project.models.recurrent import Recurrent
from torch import Tensor, nn


def digits(folder: Path) -> tuple[Tensor, Tensor]:
    """Return normalised images, float32 (N, 1, 28, 28), and classes, int64 (N,)."""
    pixels = np.fromfile(folder / "MNIST/raw/train-images-idx3-ubyte", np.uint8, offset=16)
    classes = np.fromfile(folder / "MNIST/raw/train-labels-idx1-ubyte", np.uint8, offset=8)
    images = torch.from_numpy(pixels).reshape(-1, 1, 28, 28).float()
    return images.div_(255).sub_(0.1307).div_(0.3081), torch.from_numpy(classes).long()


def sequences(samples: int, length: int) -> tuple[Tensor, Tensor]:
    """Return values with markers, float32 (N, T, 2), and the sums of the marked, (N, 1)."""
    inputs = torch.zeros(samples, length, 2)
    inputs[:, :, 0].uniform_()
    rows, half = torch.arange(samples), length // 2
    inputs[rows, torch.randint(half, (samples,)), 1] = 1
    inputs[rows, half + torch.randint(length - half, (samples,)), 1] = 1
    return inputs, inputs.prod(dim=2).sum(dim=1, keepdim=True)


def main() -> None:
    """Train and write down when each step ends."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    model: nn.Module
    if settings["workload"] == "cnn":
        model = CNN(**settings["model"])
        inputs, targets = digits(Path(settings["data"]))
    else:
        model = Recurrent(**settings["model"])
        inputs, targets = sequences(settings["samples"], settings["model"]["input_shape"][0])
    if settings.get("channels_last"):
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.to(memory_format=torch.channels_last)
    device = torch.device(settings.get("device", "cpu"))
    model, inputs, targets = model.to(device), inputs.to(device), targets.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), **settings["optimizer"])
    size = settings["batch_size"]
    batches = len(inputs) // size
    lower = torch.autocast(device.type, torch.bfloat16, settings.get("precision") == "bfloat16")
    run = torch.compile(model) if settings.get("compile") else model
    ends = open(Path(settings["out"]) / "steps.txt", "w", buffering=1)  # a line at once
    for step in itertools.count():
        start = step % batches * size
        x, y = inputs[start : start + size], targets[start : start + size]
        with lower:
            outputs = run(x)
            if settings["workload"] == "cnn":
                loss = F.cross_entropy(outputs, y, label_smoothing=0.1)
            else:
                loss = F.mse_loss(outputs, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(time.monotonic(), file=ends)


if __name__ == "__main__":
    main()
