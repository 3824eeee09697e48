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
    kept = (
        "best, last, or the step of one that was kept (trainer.keep_best,"
        " keep_checkpoint_...)"
    )
    parser.add("--checkpoint", metavar="NAME", default="best", help=kept)
    allow = "exit with status 0 although code or data changed since the record"
    parser.add("--allow-changed", action="store_true", help=allow)
    arguments = parser.add_common(
        "--json", "--trust", "--online", "--restore-code"
    ).parse_intermixed_args()
    status, row = request.answered(arguments.run, arguments, "seedbed.tools.predict")
    if row and arguments.json:
        print(text.as_json({"run": str(arguments.run), **row}))
    elif row and "error" not in row:
        options.show(f"{key} {text.show(value)}" for key, value in row.items())
    return status
