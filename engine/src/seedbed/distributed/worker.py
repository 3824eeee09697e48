"""One of several training processes: it meets the others, then trains as one alone does.

train.py starts those of one machine; for several machines, torchrun does:
torchrun TORCHRUN_OPTIONS -m seedbed.distributed.worker RUN_FOLDER [REQUEST]
"""

import contextlib
import os
import sys
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from seedbed import config, launch, signals
from seedbed.errors import InputError, exit_status
from seedbed.worker import worker
from seedbed.worker.job import Alone, Job
from seedbed.worker.summary import Summary

if TYPE_CHECKING:
    from seedbed.distributed.processes import Processes


def main() -> int:
    """Train in the folder that the command line names; return the exit status."""
    try:
        job = Job.read(sys.argv[1:], signals.Stop(), Alone())
        if os.environ.get("WORLD_SIZE", "1") == "1":
            return worker.lead(job)
        processes = find_others(job)
    except InputError:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        return 2  # another process of this machine prints why
    job = replace(job, group=processes)
    try:
        if processes.leads:
            status = worker.lead(job)
        else:
            warnings.simplefilter("ignore")
            with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
                status = worker.train(job, Summary(job))
    except InputError as error:
        if processes.first_failure(str(error))[1]:
            raise
        return 2
    if status in (0, signals.DIFFERS) or status in signals.INTERRUPTED:
        processes.leave()
    return status


def find_others(job: Job) -> "Processes":
    """Find the other processes of a run, in the environment that its preset asks for."""
    settings = job.settings
    config.check(settings)
    count = int(os.environ["WORLD_SIZE"])
    config.check_shards(settings.trainer.shards, count, settings.data.batch_size)
    environment = launch.training_environment(settings)
    if environment != dict(os.environ):  # whoever called torchrun did not set the preset's
        os.execve(sys.executable, sys.orig_argv, environment)
    from seedbed.distributed import processes  # which imports torch, in the right environment

    return processes.find(settings.trainer.distributed_timeout_seconds)


if __name__ == "__main__":
    sys.exit(exit_status(main))
