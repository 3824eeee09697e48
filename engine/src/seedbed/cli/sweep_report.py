"""Report on a sweep, or compare two: means over seeds, and whether B is better than A.

One sweep: a table of its groups (runs that differ only in their seeds), each against the first
one, and sweep.csv and sweep.png in its folder. Two: whether the second is better than the first,
paired by seed if both have the same. Exit status 1: no run counts, or equal seeds gave different
weights.
"""

from pathlib import Path

from seedbed.config import options
from seedbed.record import text
from seedbed.sweeps import groups, report


def main() -> int:
    parser = options.Parser(__doc__).add("sweep", type=Path).add("other", type=Path, nargs="?")
    parser.add("--metric", help="such as validation_loss; default: the monitored one, on test data")
    arguments = parser.add_common("--json").parse_args()
    named = filter(None, [arguments.sweep, arguments.other])
    sweeps = [groups.read(folder, arguments.metric) for folder in named]
    if arguments.json or sweeps[1:]:
        made = report.make(*sweeps)
    else:
        made = report.write(sweeps[0], arguments.metric)
    print(text.as_json(made) if arguments.json else report.describe(made))
    return 1 if made["warning"] or not made["groups"] else 0
