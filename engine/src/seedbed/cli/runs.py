"""Find runs: show a table of their settings and results, select and sort them, tag
them.

A KEY is a key of config.yaml (optimizer.lr) or of summary.json (status,
fingerprints.weights), the name of a metric (test_accuracy), run (the folder), started,
updated, verified, tags or notes.
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from seedbed.config import options
from seedbed.errors import InputError
from seedbed.listing import labels, page, selection, terminal
from seedbed.listing.rows import (
    ALWAYS,
    RESULTS,
    Row,
    default_columns,
    read,
    read_row,
    varying,
)
from seedbed.record import text

# columns that are shown if all runs are equal in them
_KEPT = ("run", "status", "started", "seed")


def main() -> int:
    arguments = command_line().parse_args(selection.join_sort_key(sys.argv[1:]))
    if relabels(arguments) and not (arguments.folders or arguments.where):
        raise InputError(
            "--tag, --note: expected folders or --where with them, got neither"
        )
    every = read(arguments.folders or [Path("runs"), Path("sweeps")])
    rows = selected(every, arguments)
    sort_keys = [arguments.sort] if arguments.sort else []
    columns = columns_of(rows, every, arguments.columns, sort_keys)
    shown = columns if arguments.columns else differing(rows, columns, sort_keys)
    if arguments.csv:  # first: printing fails if the reader of a pipe exits
        options.write(arguments.csv, text.as_csv(columns, rows))
    if arguments.html and rows:
        options.write(arguments.html, page.build(rows, page.columns_of(rows, shown)))
    if arguments.json:
        print(text.as_json([{key: row.get(key) for key in columns} for row in rows]))
        return 0
    if not rows:
        print(f"none of {len(every)} runs fits --where and --since", file=sys.stderr)
        return 0
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    asked = bool(arguments.columns)
    print(*terminal.table(rows, shown, width, asked, sort_keys), sep="\n")
    return 0


def command_line() -> options.Parser:
    """Return the parser of the arguments."""
    parser = options.Parser(__doc__)
    parser.add("folders", type=Path, nargs="*", help="default: runs and sweeps")
    parser.add(
        "--where",
        type=selection.Condition.parse_all,
        action="extend",
        default=[],
        metavar="KEY=VALUE",
        help=(
            "runs with this value (may have *), or !=, <, <=, >, >=; KEY: that have"
            " one; !KEY: that have none; several: all must hold; a value with spaces"
            """ is in quotes: 'notes="macro F1"'"""
        ),
    )
    parser.add(
        "--since",
        type=selection.since,
        metavar="DATE",
        help="started since: 2026-11-28, or 2d",
    )
    parser.add(
        "--sort",
        type=selection.sort_key,
        metavar="KEY",
        help="by this column, which is then shown; runs without a value are last",
    )
    parser.add("--reverse", action="store_true", help="sort from high to low")
    parser.add("--columns", type=lambda keys: keys.split(","), metavar="KEY,KEY")
    parser.add(
        "--csv", type=options.output, metavar="FILE", help="write the table, all digits"
    )
    parser.add(
        "--html",
        type=options.output,
        metavar="FILE",
        help="write a page: table, curves",
    )
    parser.add(
        "--tag", action="append", default=[], metavar="NAME", help="tag the runs shown"
    )
    parser.add("--untag", action="append", default=[], metavar="NAME")
    parser.add(
        "--note",
        metavar="TEXT",
        help='replace the notes of the runs shown; "" removes them',
    )
    return parser.add_common("--json")


def relabels(arguments: argparse.Namespace) -> bool:
    """Return whether tags or notes are to be changed."""
    return bool(arguments.tag or arguments.untag or arguments.note is not None)


def selected(every: Sequence[Row], arguments: argparse.Namespace) -> list[Row]:
    """Return the rows of the runs that were asked for: relabelled, and sorted."""
    rows = selection.select(every, arguments.where, arguments.since or "")
    if relabels(arguments):
        rows = relabelled(rows, arguments)
    if arguments.sort:
        selection.require_key("--sort", arguments.sort, selection.known_keys(every))
        rows = selection.ordered(rows, arguments.sort, arguments.reverse)
    return rows


def relabelled(rows: Sequence[Row], arguments: argparse.Namespace) -> list[Row]:
    """Change tags and notes of runs; return their rows, read again."""
    if rows:
        labels.require_tags(rows, arguments.untag)
    for row in rows:
        labels.change(Path(row["run"]), arguments.tag, arguments.untag, arguments.note)
    return [read_row(Path(row["run"])) for row in rows]


def columns_of(
    rows: Sequence[Row],
    every: Sequence[Row],
    asked: Sequence[str] | None,
    sort_keys: Sequence[str],
) -> list[str]:
    """Return the columns that were asked for, which runs must have, or those of the
    rows, and the sort key."""
    for key in asked or ():
        selection.require_key("--columns", key, [*ALWAYS, *selection.known_keys(every)])
    columns = asked or (default_columns(rows) if rows else list(_KEPT))
    return [*dict.fromkeys([*columns, *sort_keys])]


def differing(
    rows: Sequence[Row], columns: Sequence[str], sort_keys: Sequence[str]
) -> list[str]:
    """Return the columns in which several runs differ, the results, and what is always
    shown."""
    if len(rows) == 1:
        return list(columns)
    kept = {*_KEPT, *sort_keys, *varying(rows, columns)}
    return [key for key in columns if key in kept or key.startswith(RESULTS)]
