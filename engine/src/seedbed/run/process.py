"""The training process: trains the run in a folder and writes its record.

python -m seedbed.worker train RUN_FOLDER [REQUEST]

It starts the run, or resumes it from its newest checkpoint; REQUEST (a `config.Request`
as JSON) changes settings of the run or asks for a replay. Signals are handled before
anything slow is imported. For several machines: torchrun OPTIONS -m seedbed.worker
train RUN_FOLDER [REQUEST]
"""

import contextlib
import errno
import gc
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from seedbed import config, launch, logs, project, record, signals
from seedbed.errors import (
    ChildFailed,
    InputError,
    Interrupted,
    is_out_of_memory,
    one_line,
)
from seedbed.ranks import RUN
from seedbed.record import code, text
from seedbed.run.job import Job

_COMPOSING_SECONDS = 600.0  # for rank 0 to compose a run
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def run(arguments: Sequence[str]) -> int:
    """Do the work of a training process with these arguments; return the exit
    status."""
    stop = signals.Stop()
    count = launch.world_size()
    try:
        is_told = bool(arguments) and Path(arguments[0], "config.yaml").exists()
        if count > 1 and os.environ.get("RANK") != "0" and not is_told:
            asked = receive_run(stop)
            if isinstance(asked, int):
                return asked
            arguments = asked
        job = Job.read(arguments, stop)
        if job.request.rehearsal:
            signals.end_with_parent()
        if "WORLD_SIZE" in os.environ:
            config.check_shards(job.settings, count)
            environment = launch.training_environment(job.settings)
            # torchrun was called without the preset's
            if environment != dict(os.environ):
                command = launch.worker_command("train", *arguments)
                os.execve(sys.executable, command, environment)
        if count == 1 and (
            "RANK" not in os.environ or job.settings.trainer.sharding != "full"
        ):
            # else it is a group of one: the gates try FSDP2 on a single GPU
            return lead(job)
        from seedbed.distributed import rendezvous  # which imports torch

        timeout = job.settings.trainer.distributed_timeout_seconds
        with needing_the_store():
            group = rendezvous.find(timeout, job.stop.requested, job.request.rehearsal)
            job.ranks = group
            job.publish(group)
    except Interrupted:
        return stop.status()
    except InputError:
        if count == 1 or os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        return 2  # another process of this machine prints why
    return train_as_rank(job)


def train_as_rank(job: Job) -> int:
    """Train as one of several ranks, of which rank 0 leads; return the exit status."""
    try:
        if job.ranks.leads:
            status = lead(job)
        else:
            warnings.simplefilter("ignore")
            path = job.folder / "train.log"
            with (
                logs.kept(path, f"rank {job.ranks.rank}"),
                open(os.devnull, "w") as nowhere,
                contextlib.redirect_stdout(nowhere),
            ):
                job.begin()
                status = train(job)
    except InputError as error:
        if job.ranks.first_failure(str(error))[1]:
            raise
        return 2
    if status in (0, signals.DIFFERS, signals.PRUNED, *signals.INTERRUPTED):
        job.ranks.leave()
    return status


def receive_run(stop: signals.Stop) -> list[str] | int:
    """Return the arguments that rank 0 has for this rank, or the exit status to end
    with.

    Raise InputError, also in rank 0, if this machine does not see the run folder.
    """
    from seedbed.distributed import rendezvous  # which imports torch

    with needing_the_store():
        group = rendezvous.find(_COMPOSING_SECONDS, stop.requested)
        received = group.receive(RUN, _COMPOSING_SECONDS)
        if "status" in received:
            group.acknowledge()
            return int(received["status"])
        marker = Path(received["marker"])
        if not marker.exists():
            reason = (
                "hydra.run.dir: expected a folder that all machines share, got"
                f" {marker.parent}, which rank {group.rank} on {os.uname().nodename}"
                " does not see; choose another"
            )
            group.first_failure(reason)
            raise InputError(reason)
    return [str(marker.parent), received["request"]]


def lead(job: Job) -> int:
    """Train as rank 0: print, write the record, and return the exit status."""
    try:
        with record.lock(job.folder):
            if job.request.first_step:
                job.take_checkpoint()
            job.begin()
            path = job.folder / "train.log"
            with logs.kept(path) as log:
                length = log.tell()
                status = train(job)
                if job.request.rehearsal:
                    job.write_summary()
                    return status
                if not job.is_resuming:
                    return conclude(job, status)
                # the run was not resumed, and its record stays as it was
                log.truncate(length)
                return status
    except OSError as error:
        if line := unwritable(error, job.folder):
            raise InputError(line) from error
        raise


def train(job: Job) -> int:
    """Train, update the summary however training ends, and return the exit status."""
    try:
        if job.starts_record:
            job.write_summary()
        before = gc.get_threshold()
        # searching the imports for garbage takes 0.3 s
        gc.set_threshold(*before[:2], 10**9)
        with ThreadPoolExecutor(1) as other_thread:  # git runs during the slow imports
            git = other_thread.submit(code.git_state, project.root())
            from seedbed.run import experiment, rehearse  # which import PyTorch
        gc.freeze()
        gc.set_threshold(*before)
        try:
            with needing_the_store():
                rehearsed = rehearse.rehearse(job, run)
                experiment.run_experiment(job, rehearsed, *git.result())
        finally:
            gc.unfreeze()  # libraries expect garbage to be collected at exit
    except Interrupted:
        status = job.stop.status()
        job.summary["status"] = "pruned" if status == signals.PRUNED else "interrupted"
        return status
    except ChildFailed as error:
        job.summary |= {"status": "failed", "error": str(error)}
        sys.stderr.write(error.output)
        return error.status
    # SystemExit is of user code, and a failure, also with status 0
    except (Exception, SystemExit) as error:
        status = 1
        if isinstance(error, InputError):
            line: str | None = str(error)
            status = error.status
        elif line := unwritable(error, job.folder):
            status = 2
        else:
            line = too_large(error)
        reason, is_ours = job.ranks.first_failure(line or one_line(error))
        job.summary |= {"status": "failed", "error": reason}
        if is_ours and line:
            print(f"error: {line}", file=sys.stderr, flush=True)
        elif is_ours:
            traceback.print_exception(error)
            sys.stderr.write(project.where_to_look(error))
        return status
    job.summary["status"] = "finished"
    return 0


def conclude(job: Job, status: int) -> int:
    """Complete the record and print how the run ended; return the exit status."""
    folder = job.folder
    ending = job.summary["status"]
    try:
        # Until the record is complete, the run can be resumed.
        job.write_summary(status="running" if ending == "finished" else ending)
        if (folder / "metrics.csv").exists():
            draw_loss_curve(folder)
        job.write_summary()
    except (InputError, OSError):
        # the reason, which was printed, is the same or matters more
        if ending == "failed":
            return status
        raise
    summary = job.summary
    steps = job.summary.get("steps")
    if ending == "failed" or steps is None:
        shown = [f"{ending}; the record is in {folder}"]
    else:
        fingerprints = summary["fingerprints"]
        shown = [
            (
                f"{ending} after {steps} step{'' if steps == 1 else 's'} in"
                f" {summary['seconds']:.1f} s ({summary['samples_per_second']:.0f}"
                " samples/s)"
            ),
            *values_of_weights(summary),
            (
                f"fingerprints: weights {fingerprints['weights']}, "
                f"all steps {fingerprints['all_steps']}"
            ),
            str(folder),
        ]
    # which prints its own
    if ending == "interrupted" and not record.is_sweep(folder.parent):
        shown.append(f"resume it: {text.resume_command(folder)}")
    elif ending == "finished":
        shown += [
            f"loss curve: {path}"
            for path in [folder / "loss_curve.png"]
            if path.exists()
        ]
    print("\n".join(filter(None, shown)), flush=True)
    return status


def values_of_weights(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line with the values of the weights that count, and one with those of the
    last."""
    last, tested, best = (summary[key] for key in ("steps", "tested_step", "best_step"))
    lines = {f"last weights (step {last})": summary["last_metrics"]}
    if tested is None:
        lines = {"so far": summary["last_metrics"]}
    elif tested != last:
        lines = {f"best weights (step {best})": summary["metrics"], **lines}
    elif tested == best:
        lines = {f"best and last weights (step {last})": summary["last_metrics"]}
    for weights, values in lines.items():
        if values:
            yield (
                f"{weights}:"
                f" {', '.join(f'{name} {x:.4f}' for name, x in values.items())}"
            )


def draw_loss_curve(folder: Path) -> None:
    """Draw loss_curve.png; if that fails, a warning says so, as the training itself is
    complete."""
    from seedbed.record import plots

    try:
        plots.loss_curve(folder)
    except OSError:  # of the disk, which the summary needs as well
        raise
    except Exception as error:
        print(
            f"warning: loss_curve.png was not drawn: {one_line(error)}", file=sys.stderr
        )


def too_large(error: BaseException) -> str | None:
    """Return an error line if memory ran out; None for other errors."""
    if not is_out_of_memory(error):
        return None
    asked = re.search(r"tried to allocate ([\d.]+ \w+)", str(error), re.IGNORECASE)
    attempt = f" (tried to allocate {asked[1]})" if asked else ""
    return (
        f"memory: out of memory{attempt}; lower data.batch_size (in evaluations"
        " data.eval_batch_size), raise trainer.shards (the same batch in smaller"
        " slices), or set trainer.precision=bfloat16"
    )


@contextlib.contextmanager
def needing_the_store() -> Iterator[None]:
    """Raise InputError if the process went away that serves the store of the ranks."""
    try:
        yield
    except RuntimeError as error:
        # of PyTorch
        if type(error).__name__ not in ("DistNetworkError", "DistStoreError"):
            raise
        raise InputError(
            "MASTER_ADDR: expected an answer of the store that torchrun or rank 0"
            f" serves, got {one_line(error, 80)}; give the command again, which resumes"
            " the run if it has begun"
        ) from error


def unwritable(error: BaseException, folder: Path) -> str | None:
    """Return an error line if a run folder cannot be written; None for other errors."""
    if not isinstance(error, OSError):
        return None
    is_named = isinstance(error.filename, str | os.PathLike)  # not a file descriptor
    path = Path(error.filename) if is_named else folder
    if error.errno not in _OF_THE_DISK and not (
        is_named and path.is_relative_to(folder)
    ):
        return None
    if not folder.exists():
        return (
            f"{folder}: expected the run folder, got none: it was deleted or moved;"
            " train anew"
        )
    return (
        f"{path}: expected a run folder that can be written, got {error.strerror};"
        f" once it can be, `{text.resume_command(folder)}`"
    )
