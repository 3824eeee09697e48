"""Evaluate the saved weights of a run, or of each run of a sweep: loss, metric, predictions.

usage: python scripts/evaluate.py RUN|SWEEP [options] [key=value ...]

  --checkpoint best|last           weights: of the best validation (default), or of the last step
  --split test|validation|train    the samples (default: test); training samples are evaluated
                                   without the augmentation that data sets with `fetch` do
  --predictions FILE               write each sample's prediction there (of one run)
  --csv FILE                       write a row for each run there, numbers with all their digits
  --json                           print a JSON object of a run, of a sweep a list of them
  --trust NAME                     a class, or a package of such, that a record may name besides
                                   those that files of configs/ name
  --online                         open addresses that the record names: mirrors, downloads

Overrides name another data set of configs/data (data=mnist) or change keys of the run's
config.yaml (data.eval_batch_size=100, trainer.device=cpu). Nothing is written into a run folder.

example:
    python scripts/evaluate.py runs/a
    python scripts/evaluate.py runs/a --checkpoint last --split validation --predictions a.csv
    python scripts/evaluate.py sweeps/a data=mnist data.root=/shared/mnist --csv mnist.csv

exit status: 0 evaluated, 2 it cannot be, or some runs of a sweep cannot
"""

import argparse
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, print_error, printable
from seedbed.record import text
from seedbed.tools import request, table


def main() -> int:
    """Evaluate the runs that the command line names, each in a process of its own."""
    parser = options.Parser(__doc__).add("run", type=Path).add("overrides", nargs="*")
    parser.add("--checkpoint", choices=("best", "last"), default="best").add_flags("--json")
    parser.add("--split", choices=("test", "validation", "train"), default="test").add_trust()
    parser.add("--predictions", type=options.output).add("--csv", type=options.output)
    arguments = parser.parse_intermixed_args()
    place = arguments.run
    if record.is_begun(place) or not any(record.runs_below(place)):
        status, row = evaluated(arguments, place)
        rows = [row] if row else []
    else:
        if arguments.predictions:
            raise InputError("--predictions: expected one run, got a sweep; name one of its runs")
        found = [evaluated(arguments, run) for run in record.runs_below(place)]
        status, rows = max(each for each, _ in found), [row for _, row in found if row]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if arguments.csv and rows:
        options.write(arguments.csv, text.as_csv(columns, rows))
    if arguments.json and rows:
        print(text.as_json(rows[0] if record.is_begun(place) else rows))
    elif rows and record.is_begun(place):
        print(*map(printable, lines(rows[0], arguments.predictions)), sep="\n")
    elif rows:
        shown = [key for key in columns if key not in ("checkpoint", "split", "data", "device")]
        print(*table.lines(rows, shown), sep="\n")
    return status


def evaluated(arguments: argparse.Namespace, run: Path) -> tuple[int, Any]:
    """Evaluate a run; return the exit status, and its row if there is one."""
    try:
        settings = request.settings_of(run, arguments.overrides, arguments.trust)
    except InputError as error:
        return print_error(error), None
    asked = {
        "run": str(run.absolute()),
        "checkpoint": arguments.checkpoint,
        "split": arguments.split,
        "predictions": arguments.predictions and str(arguments.predictions),
        "overrides": arguments.overrides,
    }
    status, row = request.start("seedbed.tools.evaluation", settings, asked, arguments.online)
    return status, row and {"run": str(run), **row}


def lines(row: dict[str, Any], predictions: Path | None) -> list[str]:
    """Return what is printed of one run: what was evaluated, then a line for each value."""
    split, step = row["split"], row["step"]
    path = f"{row['run']}/checkpoints/{row['checkpoint']}.pt"
    on = f"{split} of {row['data']}, {row['samples']:,} samples, {row['device']}"
    values = [f"{key} {value!r}" for key, value in row.items() if key.startswith(f"{split}_")]
    beside = {
        True: [f"the same bits as metrics.csv has of step {step}"],
        False: [f"other bits than metrics.csv has of step {step}"],
    }
    written = [f"predictions: {predictions}"] if predictions else []
    return [f"{path} (step {step}) on {on}", *values, *beside.get(row["as_recorded"], []), *written]
