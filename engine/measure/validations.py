"""Measure what it saves that validations keep their loader workers, for
docs/measured.md.

usage: python engine/measure/validations.py [key=value ...]

Prints, for the minimal data set in 20 batches, 4 loader workers and these overrides:
seconds of 20 validations with workers that start anew for each, and with those that
are kept, and the memory of all processes between two validations, where Linux tells it
(proportional set size). Median and range of five rounds, in which both take turns.

exit status: 0 measured, 2 invalid overrides
"""

import multiprocessing
import os
import sys
import time
from contextlib import closing
from pathlib import Path

import timing

from seedbed import assemble
from seedbed.config.compose import configuration
from seedbed.errors import exit_on_errors
from seedbed.run.experiment import validation_loader
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards

ROUNDS = 5
VALIDATIONS = 20
WORDS = (
    "data=points",
    "model=dense",
    "determinism=fast",
    "data.eval_batch_size=25",
    "data.num_workers=4",
)


def main() -> int:
    ways = {"anew": "false", "kept": "true"}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, value in ways.items():
            persistent = f"data.persistent_workers={value}"
            found[way].append(validated(*WORDS, persistent, *sys.argv[1:]))
    for way, each in found.items():
        seconds, megabytes = map(timing.ratio, zip(*each, strict=True))
        print(f"{way}: {seconds} s, {megabytes} MB")
    return 0


def validated(*words: str) -> tuple[float, float]:
    """Validate repeatedly; return seconds, and megabytes of all processes."""
    settings = configuration(*words)
    assemble.prepare_backends(settings)
    shards = Shards()
    parts = assemble.build_parts(settings, assemble.choose_device("cpu"), shards)
    with closing(validation_loader(parts)) as loader:
        began = time.perf_counter()
        for _ in range(VALIDATIONS):
            evaluate(parts.training, loader(), shards)
        took = time.perf_counter() - began
        children = multiprocessing.active_children()
        pids = [os.getpid(), *(child.pid for child in children)]
        return took, sum(map(own_megabytes, pids))


def own_megabytes(pid: int | None) -> float:
    """Return a process's memory, what it shares divided by the number of processes."""
    rollup = Path(f"/proc/{pid}/smaps_rollup")
    lines = rollup.read_text().splitlines() if rollup.exists() else []
    kilobytes = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return sum(kilobytes) / 1000


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
