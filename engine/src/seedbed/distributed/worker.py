"""One of several training processes: it meets the others, then trains as one alone does.

train.py starts those of one machine; for several machines, torchrun does:
torchrun TORCHRUN_OPTIONS -m seedbed.distributed.worker RUN_FOLDER [REQUEST]
"""

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from seedbed import config, launch, signals
from seedbed.config.settings import Trainer
from seedbed.errors import InputError, exit_status
from seedbed.worker import worker
from seedbed.worker.job import Alone, Job
from seedbed.worker.summary import Summary

if TYPE_CHECKING:
    import torch

    from seedbed.distributed.processes import Processes
    from seedbed.training.shards import Shards


class Ranks(Alone):
    """The processes of a run."""

    def __init__(self, processes: "Processes") -> None:
        self.leads = processes.rank == 0
        self._processes = processes

    def join(
        self, trainer: Trainer, stop_requested: Callable[[], bool]
    ) -> "tuple[torch.device, Shards]":
        """Wait for the others; return this process's device and its shards of each batch."""
        import torch

        from seedbed.worker import assemble

        gpus = torch.cuda.device_count()
        device = assemble.choose_device(self._processes.device_name(trainer.device, gpus))
        self._processes.meet(device, stop_requested)
        return device, assemble.cut_batches(trainer, stop_requested, self._processes)

    def first_failure(self, reason: str) -> tuple[str, bool]:
        """Return why the run failed, by the first process to fail, and whether it is this one."""
        return self._processes.record_failure(reason)


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
    job = replace(job, group=Ranks(processes))
    try:
        status = worker.lead(job) if job.group.leads else follow(job)
    except InputError as error:
        _, is_ours = job.group.first_failure(str(error))
        if is_ours:
            raise
        return 2
    if status in (0, signals.DIFFERS) or status in signals.INTERRUPTED:
        processes.leave()
    return status


def find_others(job: Job) -> "Processes":
    """Find the other processes of a run, in the environment that its preset asks for.

    Raises:
        InputError: the run cannot be shared by as many, or nobody serves the store.
    """
    settings = job.settings
    config.check(settings)
    count = int(os.environ["WORLD_SIZE"])
    config.check_shards(settings.trainer.shards, count, settings.data.batch_size)
    environment = launch.training_environment(settings)
    if environment != dict(os.environ):  # whoever called torchrun did not set the preset's
        os.execve(sys.executable, sys.orig_argv, environment)
    from seedbed.distributed import processes  # which imports torch, in the right environment

    return processes.find(settings.trainer.distributed_timeout_seconds)


def follow(job: Job) -> int:
    """Train without a word: the leader prints and writes the record."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return worker.train(job, Summary(job))


if __name__ == "__main__":
    sys.exit(exit_status(main))
