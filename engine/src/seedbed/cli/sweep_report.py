"""Report on a sweep, or compare two: means over seeds, and whether B is better than A.

One sweep: a table of its groups (runs that differ only in their seeds), each against the first
one, and sweep.csv and sweep.png in its folder. Two: whether the second is better than the first,
paired by seed if both have the same, in the groups that both have. The metric is the monitored one:
on the test set for one group, on validation data for several, as they are there to choose from.
Exit status 1: no run counts, or equal seeds gave different weights.
"""

from pathlib import Path

from seedbed.config import options
from seedbed.record import text
from seedbed.sweeps import groups, report


def main() -> int:
    parser = options.Parser(__doc__).add("sweep", type=Path).add("other", type=Path, nargs="?")
    parser.add("--metric", help="such as validation_loss; default: the monitored one, see above")
    parser.add("--only", action="append", default=[], metavar="KEY=VALUE", help="only these groups")
    arguments = parser.add_common("--json").parse_args()
    named, metric = filter(None, [arguments.sweep, arguments.other]), arguments.metric
    sweeps = [groups.read(folder, metric, arguments.only) for folder in named]
    if arguments.json or sweeps[1:] or arguments.only:
        made = report.make(*sweeps, metric=metric)
    else:
        made = report.write(sweeps[0], metric)
    print(text.as_json(made) if arguments.json else report.describe(made))
    return 1 if made["warning"] or not made["groups"] else 0
