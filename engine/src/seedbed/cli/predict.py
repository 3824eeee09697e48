"""Predict new samples with the saved weights of a run; they need no targets.

The samples are those of the run's test set with the overrides
(data.dataset.file=new.csv), under the run's preprocessing, statistics and preset. Code
and data that changed since the run was recorded are named, and the exit status is then
1. Nothing is written to the run folder.
"""

from pathlib import Path

from seedbed.config import options
from seedbed.record import text
from seedbed.tools import request


def main() -> int:
    parser = options.Parser(__doc__)
    parser.add("run", type=Path, help="the folder or zip of a run")
    parser.add("overrides", nargs="*", metavar="key=value")
    out = (
        "the table: sample_id, prediction, name, probability_N; .csv, or .parquet"
        " (needs pyarrow)"
    )
    parser.add("--out", type=options.output, metavar="FILE", required=True, help=out)
    arguments = parser.add_for_checkpoints().parse_intermixed_args()
    status, row = request.answered(arguments.run, arguments, "predict")
    if row and arguments.json:
        print(text.as_json({"run": str(arguments.run), **row}))
    elif row and "error" not in row:
        options.show(f"{key} {text.show(value)}" for key, value in row.items())
    return status
