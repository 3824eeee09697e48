"""Report on sweeps: groups of runs that differ only in seeds, ranked and compared by
validation.

Each group is compared with the first one of the sweep; of several sweeps, with the
group of the first sweep that has the same settings among those that vary within a
sweep. With one sweep, writes sweep.csv and sweep.png in its folder. The values are the
monitored ones of the weights that are tested (trainer.test_weights). Each look is noted
in sweep.json. Exit status 1: a group without a run that counts, or equal seeds gave
different weights.
"""

from pathlib import Path

from seedbed.config import options
from seedbed.errors import InputError
from seedbed.record import text
from seedbed.sweeps import groups, report, show


def main() -> int:
    parser = options.Parser(__doc__).add(
        "sweeps", type=Path, nargs="+", metavar="SWEEP"
    )
    parser.add("--metric", help="such as validation_loss; default: the monitored one")
    parser.add(
        "--only",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only these groups",
    )
    parser.add(
        "--final", action="store_true", help="show the test values of the best group"
    )
    arguments = parser.add_common("--json").parse_args()
    metric = arguments.metric
    folders = list(dict.fromkeys(arguments.sweeps))
    sweeps = [groups.read(folder, metric, arguments.only) for folder in folders]
    if (
        metric
        and metric.startswith(groups.TEST)
        and sum(len(each.groups) for each in sweeps) > 1
    ):
        raise InputError(
            f"--metric: expected a validation value to choose by, got {metric}; --final"
            " shows the test values of the best group"
        )
    if not (arguments.json or sweeps[1:] or arguments.only):
        show.write(sweeps[0], metric)
    made = report.make(*sweeps, final=arguments.final)
    made["notes"] += report.note_looks(sweeps, arguments.final)
    print(text.as_json(made) if arguments.json else show.describe(made))
    return 0 if report.is_answer(made) else 1
