"""A raw training loop: random tensors in memory, eager, nothing but the steps.

No loader, no augmentation, no logging, no record. `benchmark.py` starts it with its settings as
JSON, and stops it.
"""

import itertools
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from project.models.cnn import CNN
from project.models.recurrent import Recurrent
from torch import nn


def main() -> None:
    """Train and write down when each step ends."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    model: nn.Module
    shape = settings["model"]["input_shape"]
    if settings["workload"] == "cnn":
        model = CNN(**settings["model"])
        inputs, targets = torch.randn(4000, *shape), torch.randint(10, (4000,))
    else:
        model = Recurrent(**settings["model"])
        inputs, targets = torch.rand(4000, *shape), torch.rand(4000, 1)
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
