"""Evaluate the saved weights of a run, or of each run of a sweep: loss, metric,
predictions.

Overrides select another data set (data=mnist) or change keys of the run's config.yaml.
Code and data that changed since the run was recorded are named, and the exit status is
then 1. Nothing is written to run folders.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, print_error
from seedbed.record import text
from seedbed.tools import request


def main() -> int:
    arguments = command_line().parse_intermixed_args()
    is_sweep = not record.is_run(arguments.run) and any(
        record.runs_below(arguments.run)
    )
    if is_sweep and arguments.predictions:
        raise InputError(
            "--predictions: expected one run, got a sweep; name one of its runs"
        )
    status, rows = evaluated(arguments, is_sweep)
    if arguments.json and rows:
        print(text.as_json(rows if is_sweep else rows[0]))
    else:
        show(rows, is_sweep)
    return status


def command_line() -> options.Parser:
    """Return the parser of the arguments."""
    parser = options.Parser(__doc__)
    parser.add(
        "run", type=Path, help="the folder or zip of a run, or the folder of a sweep"
    )
    parser.add("overrides", nargs="*", metavar="key=value")
    parser.add("--split", choices=("test", "validation", "train"), default="test")
    parser.add(
        "--predictions", type=options.output, metavar="FILE", help="of each sample"
    )
    return parser.add_for_checkpoints()


def evaluated(
    arguments: argparse.Namespace, is_sweep: bool
) -> tuple[int, list[dict[str, Any]]]:
    """Evaluate a run, or each run of a sweep; return the exit status and their rows.

    An error of a run of a sweep is printed, and in its row.
    """
    status = 0
    rows = list[dict[str, Any]]()
    for path in record.runs_below(arguments.run) if is_sweep else [arguments.run]:
        try:
            failed, row = request.answered(path, arguments, "evaluate")
        except InputError as error:
            if not is_sweep:
                raise
            failed = print_error(error)
            row = {"error": str(error)}
        status = max(status, failed)
        rows += [{"run": str(path), **row}] if row else []
    return status, rows


def show(rows: Sequence[Mapping[str, Any]], is_sweep: bool) -> None:
    """Print the rows: those of a sweep as a table, a single one as lines."""
    rows = [row for row in rows if "error" not in row]  # which stderr has
    if rows and is_sweep:
        columns = dict.fromkeys(key for row in rows for key in row)
        hidden = ("checkpoint", "split", "data", "device", "precision")
        print(
            *text.of_rows(rows, [key for key in columns if key not in hidden]), sep="\n"
        )
    elif rows:
        options.show(f"{key} {text.show(value)}" for key, value in rows[0].items())
