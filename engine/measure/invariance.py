"""Measure what may change around a run without changing a bit, and write docs/guarantees.md.

usage: python engine/measure/invariance.py [--out FILE] [--only WORD] [--threads N]

example:
    python engine/measure/invariance.py                      the whole table, about twenty minutes
    python engine/measure/invariance.py --only worker        some rows, printed and not written

exit status: 0 every cell that is promised to be is `same`, 1 some are not, 2 it cannot be measured
"""

import argparse
import datetime
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import invariance_runs
from invariance_rows import EXPERIMENTS, NOT_MEASURED, parts, plainly
from invariance_runs import SAME, Measured, Row

from seedbed import compare, project
from seedbed.config import options
from seedbed.errors import InputError, exit_status

PAGE = """# What may change without changing a bit

Measured by `{command}` on {date}, on {environment}.

Every cell compares a run of 60 steps under `determinism=strict` with the unmodified run: all
fingerprints (sample ids, batch contents, loss, gradients, weights, optimizer state, at every step
that both have), losses and metrics, final weights and predictions. `{same}`: not one bit
differs. Otherwise the cell names the first step and stage that differ. The CNN trains on mnist5k
with augmentation and dropout, the RNN and the LSTM on the adding problem with dropout.

{may_change}

## On several processes

The same, compared with the run on 1 process with `trainer.shards=4`, one thread in each process:

{four_shards}

And with `trainer.shards=2`:

{two_shards}

## What does change bits

These settings belong to the experiment, are recorded with it, and may change the bits.
`{same}` here means only that the change made no difference for this model on this machine.

{changes_bits}

Not measured and not promised: {not_measured}.

{kept}"""


def main() -> int:
    """Measure and print; write the page if all of it was measured."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = {
        part: (experiments, [row for row in rows if arguments.only.lower() in row.change.lower()])
        for part, (experiments, rows) in parts(arguments.threads).items()
    }
    if not any(rows for _, rows in chosen.values()):
        raise InputError(f"--only: expected a word of a row, got {arguments.only}; try worker")
    with tempfile.TemporaryDirectory(prefix="seedbed-invariance-") as temporary:
        measured = {
            part: measure(Path(temporary) / part, experiments, rows)
            for part, (experiments, rows) in chosen.items()
            if rows
        }
        if not arguments.only:
            base = compare.read(Path(temporary) / "may_change" / "CNN")
            write(arguments.out, measured, base)
    promised = (rows for part, rows in measured.items() if part != "changes_bits")
    return 0 if all(cell == SAME for rows in promised for row in rows for cell in row.cells) else 1


def measure(
    folder: Path, experiments: Mapping[str, Sequence[str]], rows: Sequence[Row]
) -> list[Measured]:
    """Train the undisturbed runs of a part, then its rows; print each as soon as it is measured."""
    bases = {name: plainly(folder / name, overrides) for name, overrides in experiments.items()}
    measured = []
    for row in invariance_runs.measure(rows, experiments, bases, folder, plainly):
        print(f"{row.change}: {' | '.join(row.cells)}", flush=True)
        measured.append(row)
    return measured


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        default=project.root() / "docs" / "guarantees.md",
        help="the page to write (default: docs/guarantees.md)",
    )
    parser.add_argument("--only", metavar="WORD", default="", help="only rows that say this")
    parser.add_argument(
        "--threads",
        metavar="N",
        type=int,
        default=2,
        help="determinism.threads of every run (default: 2, as in strict)",
    )
    return parser.parse_args()


def write(out: Path, measured: Mapping[str, Sequence[Measured]], base: compare.Record) -> None:
    """Write the page, keeping what was written by hand in the one that is there."""
    tables = {
        part: "\n".join(invariance_runs.table([*EXPERIMENTS], r)) for part, r in measured.items()
    }
    content = PAGE.format(
        command=" ".join(["python engine/measure/invariance.py", *sys.argv[1:]]),
        date=datetime.date.today().isoformat(),
        environment=invariance_runs.circumstances(base),
        same=SAME,
        not_measured="; ".join(NOT_MEASURED),
        kept=invariance_runs.kept_part(out),
        **tables,
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(content)
    print(out)


if __name__ == "__main__":
    sys.exit(exit_status(main))
