"""Report on a sweep, or compare two: means over seeds, and whether B is better than A.

usage: python scripts/sweep_report.py SWEEP [OTHER_SWEEP] [--metric NAME] [--json]

One sweep: a table of its groups (runs that differ in nothing but seeds), each group against the
first one, and sweep.csv (a row for each run) and sweep.png in its folder. Two: whether the second
is better than the first, paired by seed where both have the same. --json writes no file.

example:
    python train.py -m seed=0,1,2,3,4 hydra.sweep.dir=sweeps/adamw
    python train.py -m seed=0,1,2,3,4 optimizer=sgd hydra.sweep.dir=sweeps/sgd
    python scripts/sweep_report.py sweeps/adamw sweeps/sgd --json

exit status: 0 reported, 1 equal seeds gave other weights under a preset that promises bits, 2 there
is nothing to report
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from seedbed.config import options
from seedbed.sweeps import groups, report


def main() -> int:
    """Print the report on one sweep or the comparison of two."""
    arguments = parse()
    sweeps = [groups.read(folder, arguments.metric) for folder in arguments.sweeps]
    if arguments.json or sweeps[1:]:
        made = report.make(*sweeps)
    else:
        made = report.write(sweeps[0], arguments.metric)
    if arguments.json:
        print(json.dumps(asdict(made), indent=2, default=str))
    else:
        print(report.describe(made))
    return 1 if made.warning else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("sweep", metavar="SWEEP", type=Path, help="a folder of run folders")
    parser.add_argument(
        "other", metavar="OTHER_SWEEP", type=Path, nargs="?", help="a sweep to compare with it"
    )
    parser.add_argument(
        "--metric",
        metavar="NAME",
        help="the final metric to report, such as validation_loss (default: the one that the runs "
        "followed, on the test set if there is one)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON, and write no file")
    arguments = parser.parse_args()
    arguments.sweeps = [each for each in (arguments.sweep, arguments.other) if each]
    return arguments
