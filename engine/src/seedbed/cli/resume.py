"""Resume a run that was stopped; it ends with the bits of an uninterrupted one.

usage: python scripts/resume.py RUN [--allow-changed] [key=value ...]
       python scripts/resume.py SWEEP

example:
    python scripts/resume.py runs/a                      from its newest checkpoint
    python scripts/resume.py runs/a data.num_workers=4   with another number of loader workers
    python scripts/resume.py sweeps/a                    prints the command that resumes a sweep

How the work is done may change: data.num_workers, data.persistent_workers, data.prefetch_factor,
data.start_method, trainer.processes, logger. Any other change of configuration, code or
environment since the checkpoint was made is reported; under determinism=strict and portable, one
that can alter bits is refused.

Resume your own runs: this runs the classes that the folder's config.yaml names, and opens its
loggers. For the run of somebody else there is scripts/verify.py, which trusts none by itself.

A sweep is resumed by its own command: finished runs are skipped, interrupted and failed ones
resumed, missing ones started.

exit status: 0 finished, or printed, 2 it cannot be resumed, 129, 130 or 143 interrupted again
"""

import argparse
import sys
from pathlib import Path

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError
from seedbed.launch import resume


def main() -> int:
    """Resume the run or the sweep in a folder."""
    arguments = parse()
    if record.is_sweep(arguments.run):
        from seedbed.sweeps import plan  # a part that can be deleted

        if sys.argv[2:]:
            raise InputError(
                f"{arguments.run}: expected a run for these options, got a sweep; its command is "
                f"{plan.command(arguments.run)}"
            )
        print(plan.command(arguments.run))
        return 0
    return resume.resume_run(arguments.run, arguments.overrides, arguments.allow_changed)


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = options.parser(__doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="the folder of a run or a sweep")
    parser.add_argument("overrides", metavar="key=value", nargs="*", help="new values of settings")
    parser.add_argument(
        "--allow-changed",
        action="store_true",
        help="resume although something changed that can alter bits",
    )
    return parser.parse_intermixed_args()
