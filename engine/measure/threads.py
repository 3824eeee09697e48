"""Measure what threads that wait cost, alone and beside others, for docs/measured.md.

usage: python engine/measure/threads.py [key=value ...]

Trains some steps of a CNN with each number of turns for which a waiting thread of
OpenMP spins: alone, beside two busy processes, and two trainings side by side, taking
turns. Prints the median milliseconds of a step.

exit status: 0 measured, 1 a training failed
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROUNDS = 3
BATCH_SIZE = 64
COMMAND = (
    *("train.py", f"data.batch_size={BATCH_SIZE}", "trainer.rehearse_resume=false"),
    *("trainer.max_steps=200", "trainer.limit_validation_batches=1"),
    "trainer.limit_test_batches=1",
)
WAYS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "OpenMP's default": ({"GOMP_SPINCOUNT": "300000"}, ()),
    "100,000 turns": ({"GOMP_SPINCOUNT": "100000"}, ()),
    "3,000 turns": ({"GOMP_SPINCOUNT": "3000"}, ()),
    "none": ({"OMP_WAIT_POLICY": "PASSIVE"}, ()),
    "one thread": ({}, ("determinism.threads=1",)),
}
PLACES = {  # trainings, busy processes
    "alone": (1, 0),
    "beside two busy processes": (1, 2),
    "two side by side": (2, 0),
}


def main() -> int:
    print("waiting threads spin | " + " | ".join(PLACES), flush=True)
    table = {way: {place: list[float]() for place in PLACES} for way in WAYS}
    for _ in range(ROUNDS):
        for place, (trainings, busy) in PLACES.items():
            for way in WAYS:
                table[way][place].append(step_milliseconds(way, trainings, busy))
    for way, places in table.items():
        medians = (f"{statistics.median(each):.1f}" for each in places.values())
        print(" | ".join([way, *medians]))
    return 0


def step_milliseconds(way: str, trainings: int, busy: int) -> float:
    """Return the mean time of a step of trainings that run at once."""
    variables, overrides = WAYS[way]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(busy):
            spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            stack.callback(spinning.wait)
            stack.callback(spinning.kill)
        folders = [folder / str(number) for number in range(trainings)]
        words = (*COMMAND, *overrides, *sys.argv[1:])
        processes = [
            subprocess.Popen(
                [sys.executable, *words, f"hydra.run.dir={each}"],
                env=os.environ | variables,
                stdout=subprocess.DEVNULL,
            )
            for each in folders
        ]
        statuses = [process.wait() for process in processes]
        if any(statuses):
            raise SystemExit(1)
        summaries = [
            json.loads((each / "summary.json").read_text()) for each in folders
        ]
    rates = [float(summary["samples_per_second"]) for summary in summaries]
    return statistics.mean(1000 * BATCH_SIZE / rate for rate in rates)


if __name__ == "__main__":
    raise SystemExit(main())
