"""A table of runs: a row for each, from its configuration and its summary."""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.record import untrusted

Row = Mapping[str, Any]  # the values of a run, by key
ABSENT = "-"
_MOST_SHOWN = 80  # characters of a cell
RUN = "run"  # the key of the folder
_ALWAYS = (RUN, "status", "model.name", "data.name", "determinism.name", "seed", "steps")
# Columns that a narrow table does without, in this order.
_DISPENSABLE = ("determinism.name", "data.name", "seconds", "steps", "model.name", "status")
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}


@dataclass(frozen=True)
class Condition:
    """What a row must fulfil: a key, how it is compared, and with what text."""

    key: str
    comparison: str
    text: str

    @classmethod
    def parse(cls, word: str) -> "Condition":
        """Read `key=value`, or another comparison: !=, <, <=, >, >=."""
        found = re.fullmatch(r"\s*([^\s=<>!]+)\s*(!=|<=|>=|<|>|=)\s*(.*?)\s*", word)
        if found is None:
            raise InputError(
                f"--where: expected key=value, or !=, <, <=, >, >= between them, got {word!r}; "
                "try --where seed=0"
            )
        return cls(*found.groups())

    def holds(self, row: Row) -> bool:
        """Return whether a row fulfils it: numbers compare as numbers, all else as text.

        Of true, false and null any case will do, as on Hydra's command line. A row without the key
        is unequal to everything, and neither below nor above it.
        """
        here = row.get(self.key)
        if self.key not in row:
            return self.comparison == "!="
        numbers = as_number(here), as_number(self.text)
        compare = _COMPARISONS[self.comparison]
        if None not in numbers:
            return compare(*numbers)
        text = self.text.lower() if here is None or isinstance(here, bool) else self.text
        return self.comparison in ("=", "!=") and compare(show(here), text)


def read_row(folder: Path) -> Row:
    """Return what a run's record says, by key of its configuration or of its summary.

    The summary's metrics go by their own names (`test_accuracy`), the folder by `run`. A run that
    was killed before it wrote a summary has none.

    Raises:
        InputError: the record cannot be read.
    """
    settings = untrusted.read_yaml(folder / "config.yaml")
    if not isinstance(settings, Mapping):
        raise InputError(f"{folder / 'config.yaml'}: expected a mapping; name a run's folder")
    exists = (folder / "summary.json").exists()
    summary = record.read_summary(folder) if exists else {"status": "not started"}
    metrics = summary.pop("metrics", None)
    return {
        **record.flatten(summary),
        **(record.flatten(metrics) if isinstance(metrics, Mapping) else {}),
        **record.flatten(settings),
        RUN: str(folder),
    }


def default_columns(rows: Sequence[Row]) -> list[str]:
    """Return the columns that say what was trained and what came of it."""
    names = dict.fromkeys(str(row["metric_name"]) for row in rows if "metric_name" in row)
    results = [f"{phase}_{name}" for name in names for phase in ("best_validation", "test")]
    columns = [*_ALWAYS, *results, "seconds"]
    return [key for key in columns if any(row.get(key) is not None for row in rows)]


def fitting(rows: Sequence[Row], columns: Sequence[str], width: int = 100) -> list[str]:
    """Return the columns of a table that is no wider than a terminal, if it can be.

    Columns with one value in all rows are left out first; folder, seed and results never are.
    """
    is_tested = any(key.startswith("test_") for key in columns)
    validated = [key for key in columns if is_tested and key.startswith("best_validation_")]
    order = {key: number for number, key in enumerate([*validated, *_DISPENSABLE])}

    def telling(key: str) -> tuple[bool, int]:
        return len({show(row.get(key)) for row in rows}) > 1, order[key]

    kept = list(columns)
    for key in sorted(order.keys() & set(columns), key=telling):
        if max(map(len, lines(rows, kept))) > width:
            kept.remove(key)
    return kept


def require_known(option: str, keys: Iterable[str], rows: Sequence[Row]) -> None:
    """Raise InputError for a key that no run has."""
    known = dict.fromkeys([*_ALWAYS, *(key for row in rows for key in row)])
    for key in keys:
        if key not in known:
            raise InputError(
                f"{option}: expected a key of a run's config.yaml or summary.json, got {key}"
                f"{did_you_mean(key, known)}"
            )


def sort(rows: Iterable[Row], key: str, descending: bool = False) -> list[Row]:
    """Return rows by a key: numbers, then texts, and those without a value at the end."""
    rows = list(rows)
    there = [row for row in rows if row.get(key) is not None]
    there.sort(key=lambda row: _order(row[key]), reverse=descending)
    return there + [row for row in rows if row.get(key) is None]


def lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the lines of the table for a terminal; numbers with six digits."""
    cells = [list(columns)]
    cells += [[_short(row.get(key, ABSENT)) for key in columns] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    ]


def show(value: Any) -> str:
    """Return a value as YAML writes it; numbers with all their digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    return repr(value) if isinstance(value, float) else str(value)


def as_number(value: Any) -> float | int | None:
    """Return a number, or what a text says as one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if not isinstance(value, str):
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return None


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else show(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _order(value: Any) -> tuple[bool, Any]:
    number = as_number(value)
    return (True, show(value)) if number is None or number != number else (False, number)
