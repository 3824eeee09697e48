"""Show a table of runs: their settings and results.

A KEY is a key of config.yaml (optimizer.lr) or of summary.json (status, fingerprints.weights), the
name of a metric (test_accuracy), or run, the folder.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.names import did_you_mean
from seedbed.record import change, results, text, untrusted

Row = Mapping[str, Any]  # the values of a run, by key
_NAMES = ("model.name", "data.name", "optimizer.name", "optimizer.lr", "determinism.name")
_ALWAYS = ("run", "status", *_NAMES, "seed", "steps")
_RESULTS = ("validation_", "test_")
_SECTIONS = ("data.", "model.", "method.", "optimizer.", "schedule.", "trainer.")


def main() -> int:
    parser = options.Parser(__doc__)
    parser.add("folders", type=Path, nargs="*", help="default: runs and sweeps")
    parser.add("--columns", type=lambda keys: keys.split(","), metavar="KEY,KEY")
    parser.add("--csv", type=options.output, metavar="FILE", help="write the table, all digits")
    arguments = parser.add_common("--json").parse_args()
    rows = read(arguments.folders or [Path("runs"), Path("sweeps")])
    columns = arguments.columns or default_columns(rows)
    known = dict.fromkeys([*_ALWAYS, *(key for row in rows for key in row)])
    for key in columns:
        if key not in known:
            raise InputError(f"--columns: expected a key, got {key}{did_you_mean(key, known)}")
    if arguments.csv:  # first: printing fails if the reader of a pipe exits
        options.write(arguments.csv, text.as_csv(columns, rows))
    if arguments.json:
        print(text.as_json([{key: row.get(key) for key in columns} for row in rows]))
        return 0
    if not arguments.columns and len(rows) > 1:  # those in which the runs differ, and the results
        kept = {"run", "seed", *_varying(rows, columns)}
        columns = [key for key in columns if key in kept or key.startswith(_RESULTS)]
    print(*fitting(rows, columns, sys.stdout.isatty() and not arguments.columns), sep="\n")
    return 0


def fitting(rows: Sequence[Row], columns: Sequence[str], fits: bool) -> list[str]:
    """Return a table; if it `fits` a terminal, without the settings that are too many for it."""
    width, shown = shutil.get_terminal_size().columns, list(columns)
    lines = text.of_rows(rows, shown)
    while fits and max(map(len, lines)) > width and (settings := [k for k in shown if "." in k]):
        shown.remove(settings[-1])
        lines = text.of_rows(rows, shown)
    left_out = [key for key in columns if key not in shown]
    return [*lines, f"(more, by --columns or --csv: {', '.join(left_out)})"] if left_out else lines


def read(folders: list[Path]) -> list[Row]:
    """Return the rows of all runs in some folders; report unreadable ones on stderr."""
    rows, paths = [], dict.fromkeys(run for place in folders for run in record.runs_below(place))
    for path in paths:
        try:
            rows.append(read_row(path))
        except InputError as error:
            print(printable(f"skipped {path}: {error}".replace("\n", " ")), file=sys.stderr)
    if not rows:
        places = ", ".join(map(str, folders))
        raise InputError(f"{places}: expected at least one run that can be read, got none")
    return rows


def read_row(folder: Path) -> Row:
    """Return all values of a run by key of its configuration or summary.

    The keys of metrics are their names (`test_accuracy`, `last_test_accuracy`), after `unfinished.`
    unless the run has finished: only then are they results. The key of the folder is `run`.
    """
    settings = untrusted.read_dict(folder)
    summary = record.read_summary(folder)
    named = record.flatten(results.by_name(summary))
    summary = {k: v for k, v in summary.items() if k not in ("metrics", "last_metrics")}
    if summary.get("status") != "finished":
        named = {f"unfinished.{key}": value for key, value in named.items()}
    status = {"status": record.status_of(folder, summary), "run": str(folder)}
    return {**record.flatten(summary), **named, **record.flatten(settings), **status}


def default_columns(rows: Sequence[Row]) -> list[str]:
    """Return the default columns: names, settings that vary between the runs, and results."""
    metrics = dict.fromkeys(str(row["metric_name"]) for row in rows if "metric_name" in row)
    values = [prefix + name for name in metrics for prefix in _RESULTS]
    # Keys of a single model or data set are left out: its name is a column already.
    shared = [k for k in rows[0] if k.startswith(_SECTIONS) and all(k in row for row in rows)]
    neutral = (*change.NEUTRAL_KEYS, "*.seed", "*._target_")
    varied = [key for key in _varying(rows, shared) if not change.matches(key, neutral)]
    columns = dict.fromkeys([*_ALWAYS, *varied, *values, "seconds", "tags", "notes"])
    return [key for key in columns if any(row.get(key) not in (None, []) for row in rows)]


def _varying(rows: Sequence[Row], keys: Sequence[str]) -> list[str]:
    return [k for k in dict.fromkeys(keys) if len({repr(row.get(k)) for row in rows}) > 1]
