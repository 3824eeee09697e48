"""Measure what a row of fingerprints costs, for docs/measured.md.

usage: python engine/measure/fingerprints.py [cuda|cpu]

A row has gradients, weights and two states of a parameter: of a GPT of 124 million
parameters in float32 and bfloat16, and with transposed matrices; and of a small CNN,
with a batch. Prints milliseconds, medians of 20: the kernel alone (torch.profiler), the
whole row until the device has computed it, and what the host takes to start it; and
PyTorch's sum of as many float32 numbers.
"""

import statistics
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from seedbed.fingerprint import Hasher

GPT_LAYER = (
    (2304, 768),
    (2304,),
    (768, 768),
    (768,),
    (3072, 768),
    (3072,),
    (768, 3072),
)
GPT = ((50257, 768), (1024, 768), *12 * (*GPT_LAYER, *5 * ((768,),)))
CNN = (
    (32, 1, 3, 3),
    (32,),
    (32, 32, 3, 3),
    (32,),
    (64, 32, 3, 3),
    (64,),
    (10, 64),
    (10,),
)


def main() -> int:
    device = torch.device((sys.argv[1:] or ["cuda"])[0])
    gpt = GPT if device.type == "cuda" else GPT[1:]
    filled = [[torch.ones(shape, device=device) for shape in gpt] for _ in range(4)]
    print("| | the kernel | the whole row | the host |\n| --- | --- | --- | --- |")
    changes: dict[str, Callable[[Tensor], Tensor]] = {
        "GPT, float32": lambda x: x,
        "GPT, bfloat16": lambda x: x.bfloat16(),
        "GPT, float32, transposed": lambda x: x.t() if x.dim() == 2 else x,
    }
    for name, change in changes.items():
        show(name, device, [[change(each) for each in tensors] for tensors in filled])
    batch = [
        torch.ones(64, 1, 28, 28, device=device),
        torch.zeros(64).long().to(device),
    ]
    small = [[torch.ones(shape, device=device) for shape in CNN] for _ in range(4)]
    show("CNN", device, small, [torch.arange(64)], batch)
    numbers = torch.cat([each.flatten() for tensors in filled for each in tensors])
    whole, _ = taken(device, lambda: numbers.sum())
    print(f"| PyTorch's sum, float32 | | {whole:.2f} | |")
    return 0


def show(
    name: str, device: torch.device, four: list[list[Tensor]], *first: list[Tensor]
) -> None:
    """Print the line of a row of fingerprints."""
    gradients, weights, *states = four
    hasher = Hasher(device)

    def row() -> Tensor:
        hasher.add(*first)
        hasher.add(gradients)
        hasher.add(weights, [], [each for state in states for each in state])
        return hasher.hashes()

    whole, host = taken(device, row)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        for _ in range(5):
            row()
        synchronize(device)
    found = [each for each in profiled.key_averages() if "_add_rows" in each.key]
    kernel = sum(each.self_device_time_total for each in found) / 5000
    print(f"| {name} | {kernel:.2f} | {whole:.2f} | {host:.2f} |", flush=True)


def taken(device: torch.device, run: Callable[[], Tensor]) -> tuple[float, float]:
    """Return the median milliseconds until a call's result is there, and until it
    returns."""
    run()
    times = []
    for _ in range(20):
        synchronize(device)
        began = time.perf_counter()
        run()
        returned = time.perf_counter()
        synchronize(device)
        times.append((time.perf_counter() - began, returned - began))
    whole, host = (1000 * statistics.median(each) for each in zip(*times, strict=True))
    return whole, host


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    sys.exit(main())
