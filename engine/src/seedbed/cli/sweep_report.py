"""Report on a sweep, or compare two: statistics over the runs, and what may be claimed.

usage: python scripts/sweep_report.py SWEEP [OTHER_SWEEP] [--metric NAME]

One sweep: writes sweep.csv (a row for each run), groups.csv (a row for each configuration),
report.md and sweep.png into its folder. Two: reports whether the second is better than the first.

example:
    python train.py -m seed=0,1,2,3,4 hydra.sweep.dir=sweeps/adamw
    python train.py -m seed=0,1,2,3,4 optimizer=sgd hydra.sweep.dir=sweeps/sgd
    python scripts/sweep_report.py sweeps/adamw
    python scripts/sweep_report.py sweeps/adamw sweeps/sgd
    python scripts/sweep_report.py sweeps/adamw --metric validation_loss

exit status: 0 reported, 1 runs that promise the same bits differ, 2 there is nothing to report
"""

import argparse
from pathlib import Path

from seedbed.config import options
from seedbed.errors import printable
from seedbed.sweeps import comparison, groups, promises, report


def main() -> int:
    """Print the report of one sweep or the comparison of two."""
    arguments = parse()
    sweeps = [groups.read(arguments.sweep, arguments.metric)]
    if arguments.other is None:
        print(report.write(sweeps[0]))
        picture = ", sweep.png" if sweeps[0].groups else ""
        print(f"\nwritten to {arguments.sweep}: report.md, sweep.csv, groups.csv{picture}")
    else:
        sweeps.append(groups.read(arguments.other, arguments.metric))
        print(printable(comparison.compare(*sweeps)))
    found = [group for each in sweeps for group in each.groups]
    return 1 if promises.broken_promises(found) else 0


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
    return parser.parse_args()
