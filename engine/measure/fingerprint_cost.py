"""Measure what fingerprints cost: steps with and without them, in turns, in one process.

usage: python engine/measure/fingerprint_cost.py [--rounds N] [--steps N]

example:
    python engine/measure/fingerprint_cost.py --rounds 3

A round is a process for each workload, under determinism=strict, without loader workers. Turns of
15 steps alternate; a cell is the median step of a round, and the last column the median over the
rounds of what a step takes longer, with its range. Writing fingerprints down, with the rows of the
metrics every few steps, is not in it.

exit status: 0 measured, 2 it cannot be measured
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import benchmark_programs as programs
import benchmark_turns
from benchmark_report import table
from benchmark_sections import WORKLOADS

from seedbed.config import options
from seedbed.errors import InputError, exit_status

TURN_STEPS = 15
Round = tuple[float, float]  # seconds of a step with fingerprints, and without


def main() -> int:
    """Measure in processes of their own and print a table."""
    parser = options.parser(__doc__)
    parser.add_argument("--rounds", metavar="N", type=int, default=3, help="(default: 3)")
    parser.add_argument("--steps", metavar="N", type=int, default=600, help="(default: 600)")
    parser.add_argument("--here", metavar="CONFIG", help=argparse.SUPPRESS)  # in our own processes
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.steps < 4 * TURN_STEPS:
        raise InputError(
            f"--rounds, --steps: expected at least 1 and {4 * TURN_STEPS}, got {arguments.rounds} "
            f"and {arguments.steps}; try --rounds 3"
        )
    if arguments.here:
        print(json.dumps(in_turns(json.loads(arguments.here), arguments.steps)))
        return 0
    rows = [row(each, arguments.rounds, arguments.steps) for each in WORKLOADS]
    print(table(("workload", "ms with", "ms without", "fingerprints cost"), rows))
    return 0


def row(workload: programs.Workload, rounds: int, steps: int) -> Sequence[str]:
    """Measure a workload in rounds; return its cells."""
    found = [in_a_process(workload, steps) for _ in range(rounds)]
    costs = [100 * (after / before - 1) for after, before in found]
    cells = (f"{1000 * median(column):.2f}" for column in zip(*found, strict=True))
    cost = f"{median(costs):.1f} % ({min(costs):.1f} to {max(costs):.1f})"
    return (workload.name, *cells, cost)


def in_a_process(workload: programs.Workload, steps: int) -> Round:
    """Measure once, under the environment of the preset."""
    config = programs.configuration(*workload.overrides, "trainer.device=cpu")
    after, before = benchmark_turns.in_a_process(__file__, workload.name, config, steps)
    return after, before


def in_turns(settings: dict[str, Any], steps: int) -> Round:
    """Return the median seconds of a step with fingerprints and of one without."""
    # Not above: the process that waits can do without.
    import torch

    from seedbed.worker import assemble

    assemble.prepare_backends(settings["determinism"])
    training = assemble.build_training_state(settings, torch.device("cpu"))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    for number, take in enumerate(benchmark_turns.steps(settings, training, steps)):
        with_stages = bool(number // TURN_STEPS % 2)
        started = time.perf_counter()
        take(with_stages)
        seconds[with_stages].append(time.perf_counter() - started)
    # Without the first turns, in which memory is still being allocated.
    after, before = (median(seconds[each][TURN_STEPS:]) for each in (True, False))
    return after, before


if __name__ == "__main__":
    sys.exit(exit_status(main))
