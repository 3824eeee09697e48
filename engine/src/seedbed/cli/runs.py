"""Show a table of runs: what each trained, and what came of it.

usage: python scripts/runs.py [FOLDER ...] [options]

FOLDER is a run or a folder of runs (default: runs and sweeps). A KEY is one of config.yaml
(optimizer.lr), of summary.json (status, steps, seconds), or the name of a metric (test_accuracy).

  --where CONDITION   only runs with KEY=VALUE, or !=, <, <=, >, >= between them (in quotes, for the
                      shell); several must all hold
  --sort KEY          sort by this, smallest first; --reverse: largest first
  --columns KEYS      what to show, such as run,seed,test_accuracy; without it, the table leaves out
                      what makes it wider than 100 characters, --csv and --json do not
  --csv FILE          write the table there, numbers with all their digits
  --json              print a list of JSON objects instead

example:
    python scripts/runs.py
    python scripts/runs.py sweeps/a --where seed=0 --where 'test_accuracy>0.9' --sort optimizer.lr
    python scripts/runs.py --where tags=baseline --columns run,seed,notes --csv runs.csv

exit status: 0 a table, 1 no run fulfils the conditions, 2 an invalid request
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import text
from seedbed.tools import table
from seedbed.tools.table import Row

DEFAULT_FOLDERS = (Path("runs"), Path("sweeps"))


def main() -> int:
    """Print the table that the command line asks for."""
    parser = options.Parser(__doc__).add("folders", type=Path, nargs="*").add_flags("--json")
    parser.add("--where", type=table.condition, action="append", default=[])
    parser.add("--sort").add_flags("--reverse").add("--csv", type=options.output)
    arguments = parser.add("--columns", type=lambda keys: keys.split(",")).parse_args()
    rows = read(arguments.folders)
    table.require_known("--where", [key for key, *_ in arguments.where], rows)
    chosen = [row for row in rows if all(table.holds(row, *each) for each in arguments.where)]
    if not chosen:
        print(f"no run of {len(rows)} fulfils {' and '.join(map(''.join, arguments.where))}")
        return 1
    if arguments.sort:
        table.require_known("--sort", [arguments.sort], rows)
        chosen = table.sort(chosen, arguments.sort, arguments.reverse)
    columns = arguments.columns or table.default_columns(chosen)
    table.require_known("--columns", columns, rows)
    if arguments.csv:  # first: whoever reads what is printed may go away
        options.write(arguments.csv, text.as_csv(columns, chosen))
    if arguments.json:
        print(text.as_json([{key: row.get(key) for key in columns} for row in chosen]))
    else:
        shown = arguments.columns or table.fitting(chosen, columns)
        print(*table.lines(chosen, shown), sep="\n")
    return 0


def read(folders: Sequence[Path]) -> list[Row]:
    """Return the rows of all runs in some folders; name on stderr those that cannot be read.

    Raises:
        InputError: a folder is not there, or no run can be read.
    """
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder of runs, got no folder; name another")
    places = folders or DEFAULT_FOLDERS
    found = dict.fromkeys(run for place in places for run in record.runs_below(place))
    rows = []
    for path in found:
        try:
            rows.append(table.read_row(path))
        except InputError as error:
            print(printable(f"skipped {path}: {error}".replace("\n", " ")), file=sys.stderr)
    if len(rows) < len(found):
        print(f"unreadable records: {len(found) - len(rows)} of {len(found)}", file=sys.stderr)
    if not rows:
        where = ", ".join(map(str, places))
        raise InputError(f"{where}: expected at least one run that can be read, got none; name one")
    return rows
