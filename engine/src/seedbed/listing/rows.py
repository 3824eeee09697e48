"""The rows of a table of runs: all values of each run by key, and the columns to
show."""

import datetime
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError, printable
from seedbed.listing import labels
from seedbed.record import change, results, untrusted, verified

Row = Mapping[str, Any]  # the values of a run, by key
NAMES = (
    "model.name",
    "data.name",
    "optimizer.name",
    "optimizer.lr",
    "determinism.name",
)
ALWAYS = ("run", "status", "started", *NAMES, "seed", "steps")
RESULTS = ("validation_", "test_")
_LAST = ("seconds", "verified", "tags", "notes")
_SECTIONS = ("data.", "model.", "method.", "optimizer.", "schedule.", "trainer.")
# characters of a setting that is too long for a column, such as a list of weights
_LONG = 40


def read(folders: Sequence[Path]) -> list[Row]:
    """Return the rows of all runs in some folders; report unreadable ones on stderr."""
    paths = dict.fromkeys(
        run for folder in folders for run in record.runs_below(folder)
    )
    rows = []
    for path in paths:
        try:
            rows.append(read_row(path))
        except InputError as error:
            print(
                printable(f"skipped {path}: {error}".replace("\n", " ")),
                file=sys.stderr,
            )
    if not rows:
        places = ", ".join(map(str, folders))
        raise InputError(
            f"{places}: expected at least one run that can be read, got none"
        )
    return rows


def read_row(folder: Path) -> Row:
    """Return all values of a run by key of its configuration or summary.

    The keys of metrics are their names (`test_accuracy`, `last_test_accuracy`), after
    `unfinished.` unless the run has finished: only then are they results. The key of
    the folder is `run`, those of its dates, in local time, are `started` and `updated`.
    """
    settings = untrusted.read_dict(folder)
    summary = record.read_summary(folder)
    named = record.flatten(results.by_name(summary))
    summary = {k: v for k, v in summary.items() if k not in ("metrics", "last_metrics")}
    if summary.get("status") != "finished":
        named = {f"unfinished.{key}": value for key, value in named.items()}
    about: dict[str, Any] = {
        "status": record.status_of(folder, summary),
        "run": str(folder),
        "verified": verified.of(folder),
    }
    about |= dates_of(folder) | labels.read(folder, settings)
    return {**record.flatten(summary), **named, **record.flatten(settings), **about}


def dates_of(folder: Path) -> dict[str, str]:
    """Return when a run was `started` and last `updated`, by the times of its record's
    files.

    Some are written once, when it starts. The record itself has no times, so that a run
    that is repeated has the same one.
    """
    times = []
    for name in record.FILES:
        with suppress(OSError):
            times.append((folder / name).stat().st_mtime)
    ends = {"started": min(times), "updated": max(times)} if times else {}
    return {
        key: datetime.datetime.fromtimestamp(time).isoformat(timespec="seconds")
        for key, time in ends.items()
    }


def default_columns(rows: Sequence[Row]) -> list[str]:
    """Return the default columns: names, settings that vary between the runs, and
    results."""
    metrics = dict.fromkeys(
        str(row["metric_name"]) for row in rows if row.get("metric_name")
    )
    values = [prefix + name for name in metrics for prefix in RESULTS]
    # Keys of a single model or data set are left out: its name is a column already.
    shared = [
        k for k in rows[0] if k.startswith(_SECTIONS) and all(k in row for row in rows)
    ]
    columns = dict.fromkeys([*ALWAYS, *varied_settings(rows, shared), *values, *_LAST])
    return [
        key for key in columns if any(row.get(key) not in (None, []) for row in rows)
    ]


def varied_settings(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    """Return the settings among `keys` that vary and can change results, and fit a
    column.

    Statistics of the data and long values follow from other settings, or are no text to
    read.
    """
    neutral = (*change.NEUTRAL_KEYS, "*.seed", "*._target_", "*statistics.*")
    kept = [key for key in varying(rows, keys) if not change.matches(key, neutral)]
    return [key for key in kept if all(len(str(row.get(key))) <= _LONG for row in rows)]


def varying(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    return [
        k for k in dict.fromkeys(keys) if len({repr(row.get(k)) for row in rows}) > 1
    ]
