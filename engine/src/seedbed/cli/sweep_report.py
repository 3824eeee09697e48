"""Report on a sweep, or compare two: means over seeds, and whether B is better than A.

usage: python scripts/sweep_report.py SWEEP [OTHER_SWEEP] [options]

One sweep: a table of its groups (runs that differ in nothing but seeds), each group against the
first one, and sweep.csv (a row for each run) and sweep.png in its folder. Two: whether the second
is better than the first, paired by seed where both have the same.

  --metric NAME   the final metric to report, such as validation_loss (default: the one that the
                  runs followed, on the test set if there is one)
  --json          print one JSON object instead, and write no file

example:
    python train.py -m seed=0,1,2,3,4 hydra.sweep.dir=sweeps/adamw
    python train.py -m seed=0,1,2,3,4 optimizer=sgd hydra.sweep.dir=sweeps/sgd
    python scripts/sweep_report.py sweeps/adamw sweeps/sgd --json

exit status: 0 reported, 1 equal seeds gave other weights under a preset that promises bits, 2 there
is nothing to report
"""

from dataclasses import asdict
from pathlib import Path

from seedbed.config import options
from seedbed.record import text
from seedbed.sweeps import groups, report


def main() -> int:
    """Print the report on one sweep or the comparison of two."""
    parser = options.Parser(__doc__).add("sweep", type=Path).add("other", type=Path, nargs="?")
    arguments = parser.add("--metric").add_flags("--json").parse_args()
    named = filter(None, [arguments.sweep, arguments.other])
    sweeps = [groups.read(folder, arguments.metric) for folder in named]
    if arguments.json or sweeps[1:]:
        made = report.make(*sweeps)
    else:
        made = report.write(sweeps[0], arguments.metric)
    print(text.as_json(asdict(made)) if arguments.json else report.describe(made))
    return 1 if made.warning else 0
