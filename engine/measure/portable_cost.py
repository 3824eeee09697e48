"""Measure what determinism=portable costs beside strict, and which pin costs it.

usage: python engine/measure/portable_cost.py [--rounds N] [--steps N]

example:
    python engine/measure/portable_cost.py --rounds 5

A round trains every model under every setting for some steps, each in a process of its own, one
after another. A cell is the median over the rounds of the median step: milliseconds of processor
time (of both threads), and in brackets the ratio to strict in the same round.

exit status: 0 measured, 2 it cannot be measured
"""

import argparse
import json
import sys
import time
from itertools import pairwise
from statistics import median
from typing import Any

import benchmark_turns
import timing
from benchmark_programs import configuration

from seedbed.config import options
from seedbed.errors import InputError, exit_status

_ENV = "determinism.env."
SETTINGS: dict[str, tuple[str, ...]] = {
    "strict": ("determinism=strict",),
    "strict, PyTorch's pin alone": ("determinism=strict", f"{_ENV}ATEN_CPU_CAPABILITY=default"),
    "strict, oneDNN's pin alone": ("determinism=strict", f"{_ENV}ONEDNN_MAX_CPU_ISA=AVX"),
    "strict, MKL's pin alone": ("determinism=strict", f"{_ENV}MKL_CBWR=COMPATIBLE"),
    "portable": ("determinism=portable",),
    "portable, oneDNN at SSE4.1": (
        "determinism=portable",
        "determinism.avx=null",
        f"{_ENV}ONEDNN_MAX_CPU_ISA=SSE41",
    ),
}
MODELS: dict[str, tuple[str, ...]] = {
    "cnn": (),
    "rnn": ("experiment=adding_rnn",),
    "lstm": ("experiment=adding_lstm",),
}
WARM_UP_STEPS = 5


def main() -> int:
    """Measure in processes of their own and print a table."""
    parser = options.parser(__doc__)
    parser.add_argument("--rounds", metavar="N", type=int, default=3)
    parser.add_argument("--steps", metavar="N", type=int, default=15)
    parser.add_argument("--here", metavar="CONFIG", help=argparse.SUPPRESS)  # in our own processes
    arguments = parser.parse_args()
    if arguments.here:
        print(median(step_milliseconds(json.loads(arguments.here), arguments.steps)))
        return 0
    if min(arguments.rounds, arguments.steps) < 1:
        raise InputError("--rounds, --steps: expected an integer >= 1, got less; try --rounds 3")
    rounds = [measure(arguments.steps) for _ in range(arguments.rounds)]
    print("\n".join(timing.ratio_table(rounds, "strict", SETTINGS, MODELS)))
    return 0


def measure(steps: int) -> dict[tuple[str, str], float]:
    """Return milliseconds of processor time a step, by setting and model."""
    found = {}
    for model, experiment in MODELS.items():
        for setting, overrides in SETTINGS.items():
            config = configuration(*experiment, *overrides, "seed=0", "trainer.device=cpu")
            found[setting, model] = benchmark_turns.in_a_process(
                # Threads that wait do so asleep, so that waiting does not count.
                *(__file__, f"{setting}, {model}", config, steps),
                OMP_WAIT_POLICY="PASSIVE",
            )
            print(f"{setting}, {model}: {found[setting, model]:.1f} ms", file=sys.stderr)
    return found


def step_milliseconds(settings: dict[str, Any], steps: int) -> list[float]:
    """Train in this process; return the processor time of each step after the first few."""
    import torch

    from seedbed.worker import assemble

    assemble.prepare_backends(settings["determinism"])
    training = assemble.build_training_state(settings, torch.device("cpu"))
    times = [time.process_time()]
    for take in benchmark_turns.steps(settings, training, WARM_UP_STEPS + steps):
        take(True)
        times.append(time.process_time())
    return [1000 * (after - before) for before, after in pairwise(times)][WARM_UP_STEPS:]


if __name__ == "__main__":
    sys.exit(exit_status(main))
