"""Measure what the number of samples costs a run, for docs/measured.md.

usage: python engine/measure/sizes.py [key=value ...]

Trains one step on data sets of 10**3, 10**6 and 10**9 samples that are computed where
they are read, and resumes each for one more. Prints, for each size: seconds of the
whole command without and with the comparison of the splits' samples, seconds of the
resumed one, and the largest process: medians of three rounds, in turns.

exit status: 0 measured, 1 a run failed
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset

from seedbed.datasets import SPLITS

ROUNDS = 3
SIZES = (10**3, 10**6, 10**9)
HERE = Path(__file__).resolve().parent
WORDS = (
    *("data=points", "model=dense", "schedule=constant", "trainer.max_steps=1"),
    "trainer.validate_every_steps=1",  # so that a longer run has its last validation
    *(f"data.{split}._target_=sizes.Computed" for split in SPLITS),
)
COMMANDS = ("without", "with", "resumed")


class Computed(Dataset[tuple[torch.Tensor, int]]):
    """Points of a plane, float32 (2,), with their class, int64 (), from their index."""

    def __init__(self, split: str, seed: int, samples: int) -> None:
        self.shift = 1000 * seed + SPLITS.index(split)
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        numbers = [7919 * index + 104729 * axis + self.shift for axis in range(2)]
        point = torch.tensor([number % 1000003 / 1000003 for number in numbers])
        return point, int(point.sum() > 1)


def main() -> int:
    rows = {size: [list[float]() for _ in COMMANDS] for size in SIZES}
    peaks = {size: list[float]() for size in SIZES}
    for _ in range(ROUNDS):
        for size in SIZES:
            for times, (seconds, peak) in zip(rows[size], measured(size), strict=True):
                times.append(seconds)
                peaks[size].append(peak)
    print(" | ".join(["samples", *COMMANDS, "GB"]))
    for size, columns in rows.items():
        medians = (f"{statistics.median(times):.2f}" for times in columns)
        print(" | ".join([f"{size:,}", *medians, f"{max(peaks[size]):.2f}"]))
    return 0


def measured(size: int) -> list[tuple[float, float]]:
    """Return seconds and gigabytes of each of `COMMANDS`."""
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        train = ["train.py", *WORDS, f"data.train.samples={size}", *sys.argv[1:]]
        alone = [*train, "data.compare_splits=false"]
        return [
            timed(*alone, f"hydra.run.dir={folder}/alone"),
            timed(*train, f"hydra.run.dir={run}"),
            timed("scripts/resume.py", run, "trainer.max_steps=2"),
        ]


def timed(*command: str) -> tuple[float, float]:
    """Return a command's seconds, and gigabytes of its largest process."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(1)
    return time.perf_counter() - began, usage.ru_maxrss / 1e6


if __name__ == "__main__":
    raise SystemExit(main())
