"""What the machine could do at best: a step's floating-point operations over the fastest rate.

python engine/measure/ceiling.py JSON

A step that did nothing but matrix products as fast as large ones go, and nothing else, would take
this long. Small layers, memory traffic and activations keep every real step well above it.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from project.models.cnn import CNN
from project.models.recurrent import Recurrent
from timing import FOUND
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

_EDGE = 2048  # of the matrices that are multiplied
_TRIES = 20


def main() -> None:
    """Write down a step's operations, and operations a second."""
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    found = {
        "flops_per_step": flops_per_step(settings),
        "flops_per_second": flops_per_second(),
    }
    (Path(settings["out"]) / FOUND).write_text(json.dumps(found))


def flops_per_step(settings: dict[str, Any]) -> int:
    """Count the floating-point operations of forward and backward pass for a batch."""
    is_image = settings["workload"] == "cnn"
    model: nn.Module = (CNN if is_image else Recurrent)(**settings["model"])
    inputs = torch.zeros(settings["batch_size"], *settings["model"]["input_shape"])
    # oneDNN's LSTM is one operation that the counter does not know; PyTorch's own is many.
    with torch.backends.mkldnn.flags(enabled=is_image), FlopCounterMode(display=False) as counter:
        model(inputs).sum().backward()
    return int(counter.get_total_flops())


def flops_per_second() -> float:
    """Multiply large matrices and return the fastest rate of several tries."""
    a, b = torch.randn(_EDGE, _EDGE), torch.randn(_EDGE, _EDGE)
    out = a @ b
    best = float("inf")
    for _ in range(_TRIES):
        started = time.perf_counter()
        torch.mm(a, b, out=out)
        best = min(best, time.perf_counter() - started)
    return 2 * _EDGE**3 / best


if __name__ == "__main__":
    main()
