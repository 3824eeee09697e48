"""What may change around a run without changing a bit: measured, and written down.

A row is something that changes and a way to train with it; a column is an experiment; a cell is
what `compare` says of that run and of the experiment's first one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from seedbed import compare
from seedbed.compare import Record
from seedbed.compare.stages import stage_of
from seedbed.errors import InputError

SAME = "same"
# Trains with overrides in a folder that does not exist yet; returns the run folder.
Train = Callable[[Path, Sequence[str]], Path]
_KEPT = "<!-- What follows is written by hand and is kept when this page is measured again. -->"


@dataclass(frozen=True)
class Row:
    """Something that changes: in the configuration, or in the way of training."""

    change: str
    overrides: tuple[str, ...] = ()
    train: Train | None = None  # None: `python train.py`


@dataclass(frozen=True)
class Measured:
    """A row with its cells, in the order of the experiments."""

    change: str
    cells: tuple[str, ...]


def measure(
    rows: Iterable[Row],
    experiments: Mapping[str, Sequence[str]],
    bases: Mapping[str, Path],
    folder: Path,
    train: Train,
) -> Iterator[Measured]:
    """Train each row's change in each experiment and compare with the experiment's base run.

    The cells of a row are measured side by side.

    Args:
        experiments: name to overrides.
        bases: name to the run folder that the others are compared with.
        folder: where the runs go.
        train: for rows that say no other way.
    """

    def cell(number: int, row: Row, name: str) -> str:
        place, overrides = folder / f"{number}_{name}", [*experiments[name], *row.overrides]
        try:
            run = (row.train or train)(place, overrides)
            return verdict(compare.read(bases[name]), compare.read(run))
        except InputError as error:
            return f"failed: {error}"

    with ThreadPoolExecutor(len(experiments)) as pool:
        for number, row in enumerate(rows):
            cells = pool.map(partial(cell, number, row), experiments)
            yield Measured(row.change, tuple(cells))


def verdict(base: Record, other: Record) -> str:
    """Say `same`, or the first step and stage that differ, of two runs that finished.

    What only one of them has, such as a validation that the other left out, is passed over; the
    final weights and predictions are compared always.
    """
    for run in (base, other):
        if run.summary.get("status") != "finished":
            raise InputError(f"{run.name}: expected a finished run, got {run.summary['status']}")
    difference = compare.compare(base, other).difference
    if difference is not None:
        return f"step {difference.step}, {stage_of(difference.stage).name}"
    steps = [run.summary["steps"] for run in (base, other)]
    return SAME if steps[0] == steps[1] else f"{steps[1]} steps instead of {steps[0]}"


def table(names: Sequence[str], rows: Iterable[Measured]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield f"| what changes | {' | '.join(names)} |"
    yield f"| --- |{' --- |' * len(names)}"
    for row in rows:
        yield f"| {row.change} | {' | '.join(row.cells)} |"


def circumstances(of: Record) -> str:
    """Say in a sentence what a run ran on."""
    found = of.environment
    return (
        f"{found['cpu.model']} ({found['cpu.cores']} cores, {found['cpu.capability']}, "
        f"{found['cpu.threads']} threads in use), {found['platform']}, "
        f"Python {found['versions.python']}, torch {found['versions.torch']}, "
        f"NumPy {found['versions.numpy']}"
    )


def kept_part(page: Path) -> str:
    """Return what was written by hand below the measured part of a page, with its first line."""
    text = page.read_text() if page.exists() else ""
    return _KEPT + text.partition(_KEPT)[2] if _KEPT in text else f"{_KEPT}\n"
