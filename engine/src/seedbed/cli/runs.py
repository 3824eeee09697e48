"""Show a table of runs: their settings and results.

A KEY is a key of config.yaml (optimizer.lr) or of summary.json (status, fingerprints.weights), the
name of a metric (test_accuracy), or run, the folder.
"""

import sys
from pathlib import Path

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, printable
from seedbed.record import text
from seedbed.tools import table


def main() -> int:
    parser = options.Parser(__doc__)
    parser.add("folders", type=Path, nargs="*", help="default: runs and sweeps")
    parser.add("--columns", type=lambda keys: keys.split(","), metavar="KEY,KEY")
    parser.add("--csv", type=options.output, metavar="FILE", help="write the table, all digits")
    arguments = parser.add_common("--json").parse_args()
    rows = read(arguments.folders or [Path("runs"), Path("sweeps")])
    columns = arguments.columns or table.default_columns(rows)
    table.require_known(columns, rows)
    if arguments.csv:  # first: printing fails if the reader of a pipe exits
        options.write(arguments.csv, text.as_csv(columns, rows))
    if arguments.json:
        print(text.as_json([{key: row.get(key) for key in columns} for row in rows]))
    else:
        shown = arguments.columns or table.for_terminal(rows, columns)
        print(*table.lines(rows, shown), sep="\n")
    return 0


def read(folders: list[Path]) -> list[table.Row]:
    """Return the rows of all runs in some folders; report unreadable ones on stderr."""
    rows, paths = [], dict.fromkeys(run for place in folders for run in record.runs_below(place))
    for path in paths:
        try:
            rows.append(table.read_row(path))
        except InputError as error:
            print(printable(f"skipped {path}: {error}".replace("\n", " ")), file=sys.stderr)
    if not rows:
        places = ", ".join(map(str, folders))
        raise InputError(f"{places}: expected at least one run that can be read, got none")
    return rows
