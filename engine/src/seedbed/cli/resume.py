"""Resume a run that was stopped; it ends with the bits of an uninterrupted one.

usage: python scripts/resume.py RUN [--allow-changed] [key=value ...]
       python scripts/resume.py SWEEP

  --allow-changed   resume although something changed that can alter bits

How the work is done may change: data.num_workers, data.persistent_workers, data.prefetch_factor,
data.start_method, trainer.processes, logger. Any other change of configuration, code or
environment since the checkpoint was made is reported; under determinism=strict and portable, one
that can alter bits is refused.

A run that finished goes on with a larger trainer.max_epochs or trainer.max_steps where its learning
rates so far do not depend on it (schedule=constant), to the bits of one run of that length.

Resume your own runs: this runs the classes that the folder's config.yaml names, and opens its
loggers. For the run of somebody else there is scripts/verify.py, which trusts none by itself.

A sweep is resumed by its own command: finished runs are skipped, interrupted and failed ones
resumed, missing ones started.

example:
    python scripts/resume.py runs/a                      from its newest checkpoint
    python scripts/resume.py runs/a data.num_workers=4   with another number of loader workers
    python scripts/resume.py runs/a trainer.max_epochs=32
    python scripts/resume.py sweeps/a                    prints the command that resumes a sweep

exit status: 0 finished, or printed, 2 it cannot be resumed, 129, 130 or 143 interrupted again
"""

from pathlib import Path

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError
from seedbed.launch import resume


def main() -> int:
    """Resume the run or the sweep in a folder."""
    parser = options.Parser(__doc__).add("run", type=Path).add("overrides", nargs="*")
    arguments = parser.add_flags("--allow-changed").parse_intermixed_args()
    if not record.is_sweep(arguments.run):
        return resume.resume_run(arguments.run, arguments.overrides, arguments.allow_changed)
    from seedbed.sweeps import plan  # a part that can be deleted

    command = plan.command(arguments.run)
    if arguments.overrides or arguments.allow_changed:
        raise InputError(
            f"{arguments.run}: expected a run for these options, got a sweep; its command is "
            f"{command}"
        )
    print(command)
    return 0
