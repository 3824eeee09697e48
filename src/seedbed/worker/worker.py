"""The training process: a run folder's configuration in, its record out.

python -m seedbed.worker RUN_FOLDER [REQUEST]

It starts the run, or goes on from its newest checkpoint; REQUEST (of `resume.Request`) says what
shall change then. Signals are handled before anything slow is imported.
"""

import contextlib
import os
import signal
import sys
import time
import traceback
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, offline, record, signals
from seedbed.errors import InputError, Interrupted
from seedbed.launch import resume
from seedbed.record import terminal
from seedbed.worker import ending

if TYPE_CHECKING:
    from seedbed.distributed.processes import Processes

# A checkpoint is there, but whether the run can go on from it is not known yet.
RESUMING = "resuming"


class Stop:
    """Whether somebody asked the run to stop; the answer is given between two steps."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._since = 0.0
        for number in signals.heeded():
            signal.signal(number, self._ask)
        signals.release()

    def requested(self) -> bool:
        """Return whether a stop signal came."""
        return self.signal is not None

    def status(self) -> int:
        """Return the exit status of an interrupted run."""
        return 128 + (self.signal or signal.SIGTERM)  # without a signal: another process got it

    def _ask(self, number: int, _frame: object) -> None:
        # One Ctrl-C can come twice, from the terminal and from train.py; a person's second one
        # does not come within a second of the first.
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > 1:
            signals.ignore()  # what is left to do is to say how it ended
            raise KeyboardInterrupt


def main() -> int:
    """Train in the folder that the command line names; return the exit status."""
    if len(sys.argv) not in (2, 3):
        raise InputError("usage: expected python -m seedbed.worker RUN_FOLDER; name one folder")
    folder = Path(sys.argv[1])
    request = resume.Request.parse(sys.argv[2]) if len(sys.argv) == 3 else resume.Request()
    stop = Stop()
    offline.enforce()
    settings = resume.with_request(record.read_config(folder), request)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        return join_others(folder, settings, request, stop)
    return lead(folder, settings, request, stop)


def lead(
    folder: Path,
    settings: DictConfig,
    request: resume.Request,
    stop: Stop,
    processes: "Processes | None" = None,
) -> int:
    """Train and write the record; return the exit status.

    Raises:
        InputError: the run cannot be trained, or its folder cannot be written.
    """
    try:
        return _lead(folder, settings, request, stop, processes)
    except BrokenPipeError:
        raise
    except OSError as error:
        explained = ending.explain(error, folder)
        if explained is None:
            raise
        raise InputError(explained) from error


def _lead(
    folder: Path,
    settings: DictConfig,
    request: resume.Request,
    stop: Stop,
    processes: "Processes | None",
) -> int:
    with record.lock(folder):
        before = resume.require_unfinished(folder)
        with terminal.tee_output(folder / "train.log") as log:
            length = log.tell()
            summary = opening(folder, settings, before)
            status = run(folder, settings, request, stop, summary, processes)
            if summary["status"] != RESUMING:
                return conclude(folder, summary, status, stop)
            log.truncate(length)  # the run did not go on, and its record stays as it was
        if status in signals.INTERRUPTED:
            print(f"interrupted before it went on\n{ending.how_to_resume(folder)}", flush=True)
    return status


def conclude(folder: Path, summary: dict[str, Any], status: int, stop: Stop) -> int:
    """Complete the record and print how the run ended; return the exit status."""
    try:
        return ending.conclude(folder, summary, status)
    except KeyboardInterrupt:
        print(f"interrupted at the very end\n{ending.how_to_resume(folder)}", flush=True)
        return stop.status()


def join_others(folder: Path, settings: DictConfig, request: resume.Request, stop: Stop) -> int:
    """Train as one of several processes that torchrun started; return the exit status."""
    from seedbed.distributed import processes

    try:
        config.check(settings)
        config.check_shards(
            settings.trainer.shards, int(os.environ["WORLD_SIZE"]), settings.data.batch_size
        )
        environment = launch.training_environment(settings)
        if environment != dict(os.environ):  # whoever called torchrun did not set the preset's
            os.execve(sys.executable, sys.orig_argv, environment)
        ours = processes.find(settings.trainer.distributed_timeout_seconds)
    except InputError:
        if os.environ.get("LOCAL_RANK", "0") == "0":
            raise
        return 2  # a neighbour says why
    try:
        if ours.rank == 0:
            status = lead(folder, settings, request, stop, ours)
        else:
            status = follow(folder, settings, request, stop, ours)
    except InputError as error:
        ours.record_failure(str(error))
        raise
    if status == 0 or status in signals.INTERRUPTED:
        ours.leave()
    return status


def follow(
    folder: Path,
    settings: DictConfig,
    request: resume.Request,
    stop: Stop,
    processes: "Processes",
) -> int:
    """Train in silence: rank 0 prints and writes the record."""
    warnings.simplefilter("ignore")
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        return run(folder, settings, request, stop, opening(folder, settings, {}), processes)


def opening(folder: Path, settings: DictConfig, before: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of a run that is about to start, or to go on."""
    return {
        "format_version": record.FORMAT_VERSION,
        "status": RESUMING if resume.has_checkpoint(folder) else "running",
        "error": None,
        "seed": settings.get("seed"),
        "resumes": before.get("resumes", []),
    }


def run(
    folder: Path,
    settings: DictConfig,
    request: resume.Request,
    stop: Stop,
    summary: dict[str, Any],
    processes: "Processes | None" = None,
) -> int:
    """Train; however it ends, bring the summary up to date and return the exit status."""
    try:
        if summary["status"] == "running" and (processes is None or processes.rank == 0):
            record.write_json(folder / "summary.json", summary)
        config.check(settings)
        _train(folder, settings, request, stop, summary, processes)
    except (Interrupted, KeyboardInterrupt):
        _note(summary, "interrupted", None)
        return stop.status()
    except InputError as error:
        return _fail(summary, str(error), processes)
    except Exception as error:
        if isinstance(error, OSError) and (explained := ending.explain(error, folder)):
            return _fail(summary, explained, processes)
        # A defect, here or in the user's code: it deserves its traceback.
        reason, is_ours = _first_failure(f"{type(error).__name__}: {error}", processes)
        if is_ours and not isinstance(error, BrokenPipeError):  # who read what we print went away
            traceback.print_exc()
        _note(summary, "failed", reason)
        return 1
    _note(summary, "finished", None)
    return 0


def _train(
    folder: Path,
    settings: DictConfig,
    request: resume.Request,
    stop: Stop,
    summary: dict[str, Any],
    processes: "Processes | None",
) -> None:
    """Import what is slow, meanwhile asking git what code this is; then train."""
    from seedbed.record import source

    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(source.snapshot, source.project_root())
        from seedbed.worker import experiment

    plain: dict[str, Any] = OmegaConf.to_container(settings)  # type: ignore[assignment]
    found = code.result()  # or what went wrong, such as a full disk
    experiment.run_experiment(folder, plain, found, stop.requested, summary, request, processes)


def _note(summary: dict[str, Any], status: str, error: str | None) -> None:
    """Note how a run ended, unless it ended before it went on."""
    if summary["status"] != RESUMING:
        summary |= {"status": status, "error": error}


def _fail(summary: dict[str, Any], error: str, processes: "Processes | None") -> int:
    reason, is_ours = _first_failure(error, processes)
    _note(summary, "failed", reason)
    if is_ours:
        print(f"error: {reason}", file=sys.stderr, flush=True)
    return 2


def _first_failure(reason: str, processes: "Processes | None") -> tuple[str, bool]:
    """Return why the run failed, and whether it is on us to say so: the first process to fail."""
    return (reason, True) if processes is None else processes.record_failure(reason)
