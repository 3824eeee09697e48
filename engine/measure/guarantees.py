"""Measure what may change around a run without changing a bit, and write docs/guarantees.md.

usage: python engine/measure/guarantees.py [--out FILE] [--only WORD]

example:
    python engine/measure/guarantees.py                      the whole table, about twenty minutes
    python engine/measure/guarantees.py --only worker        some rows, printed and not written

A row is something that changes and a way to train with it; a column is an experiment; a cell is
what `compare` says of that run and of the experiment's first one.

exit status: 0 every cell that is promised to be is `same`, 1 some are not, 2 it cannot be measured
"""

import argparse
import datetime
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from guarantees_rows import EXPERIMENTS, PARTS, Part, Row, plainly

from seedbed import compare, project
from seedbed.compare.stages import stage_of
from seedbed.config import options
from seedbed.errors import InputError, exit_status

SAME = "same"
PAGE = """# What may change without changing a bit

Measured by `{command}` on {date}, on {machine}.

Every cell compares a run of 60 steps under `determinism=strict` with the unmodified run: all
fingerprints (sample ids, batch contents, loss, gradients, weights, optimizer state), losses and
metrics, final weights and predictions. `same`: not one bit differs. Otherwise the cell names the
first step and stage that differ. The CNN trains on mnist5k with augmentation and dropout, the RNN
and the LSTM on the adding problem with dropout.

{tables}

{kept}"""
KEPT = "<!-- What follows is written by hand and is kept when this page is measured again. -->"


def main() -> int:
    """Measure and print; write the page if all of it was measured."""
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    word = arguments.only.lower()
    cells: list[tuple[Part, list[str]]] = []
    tables = []
    with tempfile.TemporaryDirectory(prefix="seedbed-guarantees-") as temporary:
        for number, part in enumerate(PARTS):
            rows = [row for row in part.rows if word in row.change.lower()]
            if not rows:
                continue
            folder = Path(temporary, str(number))
            measured = {row.change: cells_of for row, cells_of in measure(part, rows, folder)}
            tables.append(f"## {part.title}\n\n{table(measured)}")
            cells += [(part, found) for found in measured.values()]
        if not cells:
            raise InputError(f"--only: expected a word of a row, got {arguments.only}; try worker")
        if not word:
            write(arguments.out, tables, compare.read(Path(temporary, "0", "base_CNN")))
    return int(any(part.is_promised and {*found} != {SAME} for part, found in cells))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    page = project.root() / "docs" / "guarantees.md"
    parser.add_argument("--out", metavar="FILE", type=Path, default=page)
    parser.add_argument("--only", metavar="WORD", default="", help="only rows that contain it")
    return parser.parse_args()


def measure(part: Part, rows: Sequence[Row], folder: Path) -> list[tuple[Row, list[str]]]:
    """Train the unmodified runs of a part, then its rows; print each as soon as it is measured."""
    overrides = {name: [*words, *part.overrides] for name, words in EXPERIMENTS.items()}
    bases = {name: plainly(folder / f"base_{name}", overrides[name]) for name in EXPERIMENTS}

    def cell(number: int, row: Row, name: str) -> str:
        train = row.train or plainly
        try:
            run = train(folder / f"{number}_{name}", [*overrides[name], *row.overrides])
            return verdict(compare.read(bases[name]), compare.read(run))
        except InputError as error:
            return f"failed: {error}"

    measured = []
    with ThreadPoolExecutor(len(EXPERIMENTS)) as pool:  # the cells of a row at the same time
        for number, row in enumerate(rows):
            found = list(pool.map(partial(cell, number, row), EXPERIMENTS))
            print(f"{row.change}: {' | '.join(found)}", flush=True)
            measured.append((row, found))
    return measured


def verdict(base: compare.Record, other: compare.Record) -> str:
    """Return `same`, or the first step and stage that differ, of two runs that finished."""
    for run in (base, other):
        if run.summary.get("status") != "finished":
            raise InputError(f"{run.name}: expected a finished run, got {run.summary['status']}")
    difference = compare.compare(base, other).difference
    if difference is not None:
        return f"step {difference.step}, {stage_of(difference.stage).name}"
    steps = [run.summary["steps"] for run in (base, other)]
    return SAME if steps[0] == steps[1] else f"{steps[1]} steps instead of {steps[0]}"


def table(rows: Mapping[str, Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [["what changes", *EXPERIMENTS], ["---"] * (1 + len(EXPERIMENTS))]
    lines += [[change, *cells] for change, cells in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(out: Path, tables: Sequence[str], base: compare.Record) -> None:
    """Write the page, with what was written by hand in the one that is there."""
    text = out.read_text() if out.exists() else ""
    page = PAGE.format(
        command=" ".join(["python engine/measure/guarantees.py", *sys.argv[1:]]),
        date=datetime.date.today().isoformat(),
        machine=machine(base),
        tables="\n\n".join(tables),
        kept=KEPT + text.partition(KEPT)[2] if KEPT in text else "",
    )
    out.write_text(page)
    print(out)


def machine(of: compare.Record) -> str:
    """Return what a run ran on, in a few words."""
    found = of.environment
    return (
        f"{found['cpu.model']} ({found['cpu.cores']} cores, {found['cpu.capability']}, "
        f"{found['cpu.threads']} threads in use), {found['platform']}, "
        f"Python {found['versions.python']}, torch {found['versions.torch']}"
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
