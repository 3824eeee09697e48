"""A table of runs, one row per run, from its configuration and its summary."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.record import change, text, untrusted

Row = Mapping[str, Any]  # the values of a run, by key
_NAMES = ("model.name", "data.name", "optimizer.name", "optimizer.lr", "determinism.name")
_ALWAYS = ("run", "status", *_NAMES, "seed", "steps")
_RESULTS = ("best_validation_", "test_")
_SECTIONS = ("data.", "model.", "method.", "optimizer.", "schedule.", "trainer.")


def read_row(folder: Path) -> Row:
    """Return all values of a run by key of its configuration or summary.

    The keys of metrics are their names (`test_accuracy`), after `unfinished.` unless the run has
    finished: only then are they results. The key of the folder is `run`.

    Raises:
        InputError: the record cannot be read.
    """
    settings = untrusted.read_dict(folder)
    summary = record.read_summary(folder)
    metrics = summary.pop("metrics", None)
    named = record.flatten(metrics) if isinstance(metrics, Mapping) else {}
    if summary.get("status") != "finished":
        named = {f"unfinished.{key}": value for key, value in named.items()}
    return {**record.flatten(summary), **named, **record.flatten(settings), "run": str(folder)}


def default_columns(rows: Sequence[Row]) -> list[str]:
    """Return the default columns: names, settings that vary between the runs, and results."""
    metrics = dict.fromkeys(str(row["metric_name"]) for row in rows if "metric_name" in row)
    results = [prefix + name for name in metrics for prefix in _RESULTS]
    # Keys of a single model or data set are left out: its name is a column already.
    shared = [k for k in rows[0] if k.startswith(_SECTIONS) and all(k in row for row in rows)]
    neutral = (*change.NEUTRAL_KEYS, "*.seed", "*._target_")
    varied = [key for key in _varying(rows, shared) if not change.matches(key, neutral)]
    columns = dict.fromkeys([*_ALWAYS, *varied, *results, "seconds", "tags", "notes"])
    return [key for key in columns if any(row.get(key) not in (None, []) for row in rows)]


def for_terminal(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the columns for a terminal: those in which the runs differ, and the results."""
    kept = {"run", "seed", *_varying(rows, columns)}
    return [k for k in columns if len(rows) == 1 or k in kept or k.startswith(_RESULTS)]


def _varying(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    return [k for k in dict.fromkeys(keys) if len({repr(row.get(k)) for row in rows}) > 1]


def require_known(columns: Sequence[str], rows: Sequence[Row]) -> None:
    """Raise InputError for a column that no run has."""
    known = dict.fromkeys([*_ALWAYS, *(key for row in rows for key in row)])
    for key in columns:
        if key not in known:
            raise InputError(f"--columns: expected a key, got {key}{did_you_mean(key, known)}")


def lines(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """Return the lines of the table for a terminal; floats with six significant digits."""
    values = [[row.get(key, "-") for key in columns] for row in rows]
    cells = [[f"{x:.6g}" if isinstance(x, float) else text.show(x) for x in row] for row in values]
    return text.aligned([columns, *cells])
