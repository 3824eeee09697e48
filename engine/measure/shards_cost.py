"""Measure what the same bits with any number of cores cost: shards, on 1, 2 and 4 processes.

usage: python engine/measure/shards_cost.py [--rounds N] [--steps N]

example:
    python engine/measure/shards_cost.py --rounds 3

A round trains every model in every way by train.py, one after another. A cell is the median over
the rounds of the time of a step, in milliseconds, and in brackets its ratio to two threads without
shards in the same round. The table says as well whether all numbers of processes gave the same
bits.

exit status: 0 measured, 1 the bits differ, 2 it cannot be measured
"""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import timing

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, exit_status

ROOT = Path(__file__).resolve().parents[2]
BASELINE = "2 threads"
PROCESSES = (1, 2, 4)
WAYS: dict[str, tuple[str, ...]] = {
    BASELINE: ("determinism.threads=2",),
    "1 thread": ("determinism.threads=1",),
    **{
        f"4 shards, {n} {'process' if n == 1 else 'processes'}": (
            "determinism.threads=1",
            "trainer.shards=4",
            f"trainer.processes={n}",
        )
        for n in PROCESSES
    },
}
MODELS: dict[str, tuple[str, ...]] = {
    "CNN": (),
    "LSTM": ("experiment=adding_lstm",),
    "GPT": ("experiment=char_gpt",),
}
Round = dict[tuple[str, str], tuple[float, str]]


def main() -> int:
    """Train in turn, print a table, and compare the bits."""
    parser = options.parser(__doc__)
    parser.add_argument("--rounds", metavar="N", type=int, default=3)
    parser.add_argument("--steps", metavar="N", type=int, default=100)
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.steps) < 1:
        raise InputError("--rounds, --steps: expected an integer >= 1, got less; try --rounds 3")
    rounds = [measure(arguments.steps) for _ in range(arguments.rounds)]
    times = [{place: found[0] for place, found in each.items()} for each in rounds]
    print("\n".join(timing.ratio_table(times, BASELINE, WAYS, MODELS)))
    shards = [way for way in WAYS if "shards" in way]
    same = all(
        len({each[way, model][1] for each in rounds for way in shards}) == 1 for model in MODELS
    )
    print("\nthe same bits on 1, 2 and 4 processes" if same else "\nthe bits differ")
    return int(not same)


def measure(steps: int) -> Round:
    """Return milliseconds a step and the run's fingerprints, by way and model."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for model, experiment in MODELS.items():
            for way, overrides in WAYS.items():
                folder = Path(place) / f"{model}, {way}"
                found[way, model] = train(folder, [*experiment, *overrides], steps)
                print(f"{model}, {way}: {found[way, model][0]:.1f} ms", file=sys.stderr)
    return found


def train(folder: Path, overrides: Sequence[str], steps: int) -> tuple[float, str]:
    """Train for some steps; return milliseconds a step, and what names the bits of all of them.

    Raises:
        InputError: the run failed.
    """
    words = [
        *("train.py", "seed=0", "trainer.device=cpu", f"trainer.max_steps={steps}"),
        *("trainer.validate_every_epochs=0", f'hydra.run.dir="{folder}"'),
    ]
    done = subprocess.run(
        [sys.executable, *words, *overrides], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise InputError(
            f"train.py {' '.join(overrides)}: expected a run, got {done.stderr[-300:]}"
        )
    config, summary = record.read_config(folder), record.read_summary(folder)
    milliseconds = 1000 * config.data.batch_size / summary["samples_per_second"]
    return milliseconds, str(summary["fingerprints"])


if __name__ == "__main__":
    sys.exit(exit_status(main))
