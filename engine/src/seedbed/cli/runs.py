"""Show a table of runs: what each trained, and what came of it.

usage: python scripts/runs.py [FOLDER ...] [--where CONDITION] [--sort KEY] [--reverse]
                              [--columns KEY,KEY,...] [--csv FILE]

FOLDER is a run or a folder of runs (default: runs and sweeps). A KEY is one of config.yaml
(optimizer.lr), of summary.json (status, steps, seconds), or the name of a metric (test_accuracy).
Without --columns, the table leaves out what makes it wider than 100 characters; --csv does not.

example:
    python scripts/runs.py
    python scripts/runs.py sweeps/a --where seed=0 --where 'test_accuracy>0.9' --sort optimizer.lr
    python scripts/runs.py --columns run,seed,optimizer.lr,test_accuracy --csv runs.csv

exit status: 0 a table, 1 no run fulfils the conditions, 2 an invalid request
"""

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.tools import places, table
from seedbed.tools.table import Condition, Row

DEFAULT_FOLDERS = (Path("runs"), Path("sweeps"))


def main() -> int:
    """Print the table that the command line asks for."""
    arguments = parse()
    conditions = [Condition.parse(word) for word in arguments.where]
    out = arguments.csv and places.require_output("--csv", arguments.csv)
    rows = read(arguments.folders)
    table.require_known("--where", [condition.key for condition in conditions], rows)
    chosen: Sequence[Row] = [row for row in rows if all(c.holds(row) for c in conditions)]
    if not chosen:
        print(f"no run of {len(rows)} fulfils {' and '.join(arguments.where)}")
        return 1
    if arguments.sort:
        table.require_known("--sort", [arguments.sort], rows)
        chosen = table.sort(chosen, arguments.sort, arguments.reverse)
    columns = arguments.columns or table.default_columns(chosen)
    table.require_known("--columns", columns, rows)
    shown = arguments.columns or table.fitting(chosen, columns)
    for line in table.lines(chosen, shown):
        print(printable(line))
    if out:
        places.write("--csv", out, csv_text(chosen, columns))
    return 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument(
        "folders", metavar="FOLDER", type=Path, nargs="*", help="a run, or a folder of runs"
    )
    parser.add_argument(
        "--where",
        metavar="CONDITION",
        action="append",
        default=[],
        help="only runs with key=value, or !=, <, <=, >, >= between them (in quotes, for the "
        "shell); several must all hold",
    )
    parser.add_argument("--sort", metavar="KEY", help="sort by this, smallest first")
    parser.add_argument("--reverse", action="store_true", help="with --sort: largest first")
    parser.add_argument(
        "--columns",
        metavar="KEYS",
        type=lambda text: [key.strip() for key in text.split(",") if key.strip()],
        help="what to show, with commas in between",
    )
    parser.add_argument("--csv", metavar="FILE", type=Path, help="write the table there as well")
    arguments = parser.parse_args()
    if arguments.reverse and not arguments.sort:
        raise InputError("--reverse: expected a key to sort by, got none; add --sort KEY")
    return arguments


def read(folders: Sequence[Path]) -> list[Row]:
    """Return the rows of all runs in some folders; name on stderr those that cannot be read.

    Raises:
        InputError: a folder is not there, or no run can be read.
    """
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder of runs, got no folder; name another")
    named = folders or [folder for folder in DEFAULT_FOLDERS if folder.is_dir()]
    found = dict.fromkeys(path for folder in named for path in places.run_folders(folder))
    rows, skipped = [], 0
    for path in found:
        try:
            rows.append(table.read_row(path))
        except InputError as error:
            skipped += 1
            print(printable(f"skipped {path}: {error}".replace("\n", " ")), file=sys.stderr)
    if skipped:
        records = "record" if skipped == 1 else "records"
        print(f"skipped {skipped} unreadable {records} of {len(found)}", file=sys.stderr)
    if not rows:
        where = ", ".join(map(str, folders or DEFAULT_FOLDERS))
        raise InputError(f"{where}: expected at least one run that can be read, got none; name one")
    return rows


def csv_text(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return the table as CSV, numbers with all their digits; no value, no text."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([table.show(row[key]) if key in row else "" for key in columns])
    return text.getvalue()
