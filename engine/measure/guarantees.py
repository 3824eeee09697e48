"""Measure what may change around a run without changing a bit, for docs/measured.md.

usage: python engine/measure/guarantees.py [--out FILE] [--only WORD]

example:
    python engine/measure/guarantees.py                      the whole table, about twenty minutes
    python engine/measure/guarantees.py --only worker        some rows, printed and not written

A row is something that changes and a way to train with it; a column is an experiment; a cell is
what `compare` says of that run and of the experiment's first one.

exit status: 0 every cell that is promised to be is `same`, 1 some are not, 2 it cannot be measured
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import page
from guarantees_rows import EXPERIMENTS, PARTS, Part, Row, plainly

from seedbed import compare
from seedbed.compare.stages import stage_of
from seedbed.config import options
from seedbed.errors import InputError, exit_status

SAME = "same"


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
            tables.append(f"### {part.title}\n\n{table(measured)}")
            cells += [(part, found) for found in measured.values()]
        if not cells:
            raise InputError(f"--only: expected a word of a row, got {arguments.only}; try worker")
        if not word:
            base = compare.read(Path(temporary, "0", "base_CNN"))
            page.write_section(arguments.out, "guarantees", tables, base)
    return int(any(part.is_promised and {*found} != {SAME} for part, found in cells))


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    page.add_out(parser)
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
    """Return Markdown: a list of the changes that changed nothing, a table of the others."""
    same = [change for change, cells in rows.items() if {*cells} == {SAME}]
    lines = [["", *EXPERIMENTS], ["---"] * (1 + len(EXPERIMENTS))]
    lines += [[change, *cells] for change, cells in rows.items() if change not in same]
    parts = [f"`{SAME}` for {', '.join(EXPERIMENTS)}:", "\n".join(f"- {x}" for x in same)]
    others = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join([*(parts if same else []), *([others] if lines[2:] else [])])


if __name__ == "__main__":
    sys.exit(exit_status(main))
