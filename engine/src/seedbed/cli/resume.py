"""Resume a run that was stopped; it ends with the same bits as an uninterrupted run.

A finished run continues with a larger trainer.max_epochs or trainer.max_steps. A run
that another checkout has started may name only classes of configs/. For a sweep, the
command that resumes it is printed.
"""

from pathlib import Path

from seedbed import launch, record
from seedbed.config import options
from seedbed.errors import InputError


def main() -> int:
    parser = options.Parser(__doc__).add(
        "run", type=Path, help="the folder of a run or a sweep"
    )
    parser.add(
        "overrides", nargs="*", metavar="key=value", help="such as data.num_workers=4"
    )
    text = "resume although something changed that can alter bits"
    parser.add("--allow-changed", action="store_true", help=text)
    arguments = parser.add_common("--trust", "--online").parse_intermixed_args()
    if not record.is_sweep(arguments.run):
        return launch.resume_run(
            arguments.run,
            arguments.overrides,
            arguments.allow_changed,
            arguments.trust,
            arguments.online,
        )
    from seedbed.sweeps import job  # a part that can be deleted

    command = job.command(arguments.run)
    if arguments.overrides or arguments.allow_changed:
        raise InputError(
            f"{arguments.run}: expected a run, got a sweep; its command is {command}"
        )
    print(command)
    return 0
