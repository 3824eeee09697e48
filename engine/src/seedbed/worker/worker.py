"""The training process: a run folder's configuration in, its record out.

python -m seedbed.worker RUN_FOLDER [REQUEST]

It starts the run, or resumes it from its newest checkpoint; REQUEST (a `config.Request`) holds what
shall change then. Signals are handled before anything slow is imported.
"""

import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor

from seedbed import config, project, record, signals
from seedbed.errors import InputError, Interrupted, one_line
from seedbed.record import code, terminal
from seedbed.worker import ending
from seedbed.worker.job import Alone, Job
from seedbed.worker.summary import Summary


def main() -> int:
    """Train in the folder that the command line names; return the exit status."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count != "1":
        raise InputError(
            f"WORLD_SIZE: expected one process, got {count}; for several, let torchrun start "
            "-m seedbed.distributed.worker"
        )
    return lead(Job.read(sys.argv[1:], signals.Stop(), Alone()))


def lead(job: Job) -> int:
    """Train, print and write the record; return the exit status.

    Raises:
        InputError: the run cannot be trained, or its folder cannot be written.
    """
    try:
        with record.lock(job.folder):
            if job.request.first_step:
                from seedbed.worker import replayed  # which imports torch

                replayed.begin(job)
            summary = Summary(job)
            with terminal.tee_output(job.folder / "train.log") as log:
                length = log.tell()
                status = train(job, summary)
                if not summary.is_resuming:
                    return ending.conclude(job, summary, status)
                log.truncate(length)  # the run was not resumed, and its record stays as it was
    except BrokenPipeError:
        raise
    except OSError as error:
        explained = ending.explain(error, job.folder)
        if explained is None:
            raise
        raise InputError(explained) from error
    if status in signals.INTERRUPTED:
        print(f"interrupted before it resumed\n{ending.how_to_resume(job.folder)}", flush=True)
    return status


def train(job: Job, summary: Summary) -> int:
    """Train; however it ends, bring the summary up to date and return the exit status."""
    try:
        if job.group.leads and not summary.is_resuming:
            summary.write()
        config.check(job.settings)
        with ThreadPoolExecutor(1) as other_thread:  # git is asked during the slow imports
            git = other_thread.submit(code.git_state, project.root())
            from seedbed.worker import experiment
        experiment.run_experiment(job, summary, *git.result())
    except (Interrupted, KeyboardInterrupt):
        summary.end("interrupted")
        return job.stop.status()
    except Exception as error:
        return fail(job, summary, error)
    summary.end("finished")
    return 0


def fail(job: Job, summary: Summary, error: Exception) -> int:
    """Note why the run failed, and print it unless another process does; return the status."""
    refused = str(error) if isinstance(error, InputError) else None
    if isinstance(error, OSError):
        refused = ending.explain(error, job.folder)
    reason, is_ours = job.group.first_failure(refused or one_line(error))
    summary.end("failed", reason)
    if refused is not None:
        if is_ours:
            print(f"error: {reason}", file=sys.stderr, flush=True)
        return 2
    if is_ours and not isinstance(error, BrokenPipeError):  # whoever read our output went away
        traceback.print_exception(error)
    return 1
