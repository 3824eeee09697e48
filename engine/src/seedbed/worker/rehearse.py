"""The rehearsal: before a run begins, it is started and resumed once, in processes of its own.

The training process forks before it imports user code or touches a GPU. A first child takes two
steps, with a checkpoint after each. A second child resumes from the checkpoint of step 1, and must
take the same second step. Then the process itself trains, and its first two steps must be those of
the first child. Nothing is reset or rebuilt, so what a checkpoint lacks is missing in the second
child, wherever it was kept, and the run itself is not affected.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import config, record
from seedbed.config import Request, Settings
from seedbed.errors import ChildFailed, InputError, Interrupted, exit_status
from seedbed.names import STAGES
from seedbed.record import Row
from seedbed.worker import passed, trial
from seedbed.worker.job import Job

FOLDER = ".rehearsal"  # in the run folder
Run = Callable[[Sequence[str]], int]
_FILL = "determinism.fill_uninitialized_memory"
_POLL_SECONDS, _QUIET_SECONDS = 0.003, 5.0
_SKIP = "trainer.rehearse_resume=false skips the rehearsal"


@dataclass(frozen=True)
class Attempt:
    """What a child recorded: fingerprints and metrics by step, and its notes (see `trial`)."""

    fingerprints: dict[int, Row]
    metrics: dict[int, Row]
    notes: Mapping[str, Any]

    def values(self, step: int) -> dict[str, Any]:
        """Return all that is compared of a step, by its name in `trial.STAGES_COMPARED`."""
        logged = record.values_of(self.metrics[step])
        rates = {name: cell for name, cell in logged.items() if name.startswith("learning_rate")}
        stages = {name: self.fingerprints[step].get(name) for name in STAGES}
        notes = self.notes if step == trial.STEPS else {}
        others = {name: cell for name, cell in logged.items() if name not in rates}
        return {**stages, **notes, "learning rate": rates, "logged values": others}


@dataclass
class Rehearsed:
    """The result of a rehearsal, for the run itself.

    Attributes:
        fingerprints: the rows of the first steps that the run must still repeat, by step; empty if
            there was no rehearsal.
        warning: a line to log; empty if there is none.
    """

    fingerprints: dict[int, Row]
    warning: str = ""

    def repeated_by(self, rows: Iterable[Mapping[str, object]]) -> bool:
        """Return whether these rows complete the repetition, so that others need no rehearsal.

        Raises:
            InputError: a row differs from that of the same step in the rehearsal.
        """
        repeats = False
        for row in rows:
            step = int(str(row["step"]))
            expected = self.fingerprints.pop(step, None)
            for name, cell in (expected or {}).items():
                if str(row.get(name, "")) != cell:
                    raise InputError(not_repeated(name, step))
            repeats = repeats or expected is not None
        return repeats and not self.fingerprints and not self.warning


def rehearse(job: Job, settings: Settings, run: Run) -> Rehearsed:
    """Start and resume a run that is about to begin, unless an equal one has passed before.

    Args:
        run: does the work of a training process, given its arguments; returns the exit status.

    Raises:
        InputError: the resumed child took another step, or evaluations depend on more than weights
            and samples.
        ChildFailed: a child failed with an error, which is the run's own.
        Interrupted: the run was asked to stop.
    """
    if not job.decide("rehearsal", lambda: _is_due(job, settings)):
        return Rehearsed({})
    fills = settings.determinism.fill_uninitialized_memory == "rehearsal"
    try:
        try:
            first = _run_child(job, run, "first", fills)
        except ChildFailed as error:
            is_nan = "finite" in str(error)  # as filled memory is
            if fills and job.decide("nan", lambda: is_nan):
                _run_child(job, run, "unfilled")
                raise InputError(_unwritten("a NaN")) from None
            raise
        second = _run_child(job, run, "second")
        stage = job.decide("verdict", lambda: _first_difference(first, second, trial.STEPS))
        if stage not in (None, "logged values"):
            line = _explanation(job, run, first, second, stage, fills)
            raise InputError(job.decide("line", lambda: line))
    finally:
        if job.leads:
            shutil.rmtree(job.folder / FOLDER, ignore_errors=True)
    if stage is None:
        return Rehearsed(first.fingerprints)
    # What training does not depend on, such as a counter that is logged.
    return Rehearsed(
        first.fingerprints,
        f"warning: what {settings.method._target_.rpartition('.')[2]} logs restarts in a resumed "
        "run (metrics.csv, not the weights); keep what it counts in buffers of the model",
    )


def _is_due(job: Job, settings: Settings) -> bool:
    """Return whether to rehearse; replays are compared with their record instead."""
    promises = config.promises_bits(settings.determinism.on_nondeterministic)
    wanted = settings.trainer.rehearse_resume and promises and settings.determinism.seeding
    is_new = not (job.is_resuming or job.request.record or job.request.rehearsal)
    return wanted and is_new and settings.trainer.max_steps != 1 and not passed.before(job)


def _run_child(job: Job, run: Run, name: str, fills: bool = False) -> Attempt:
    """Run a child of the rehearsal in each rank; on rank 0, return what it recorded.

    Args:
        name: `second` resumes the first child's run; any other starts anew.
        fills: whether memory that nothing has written is filled with NaN.
    """
    folder = job.folder / FOLDER / ("first" if name == "second" else name)
    changes: dict[str, Any] = {_FILL: fills or job.settings.determinism.fill_uninitialized_memory}
    if name == "second":
        changes["data.num_workers"] = 0
    if job.leads:
        _prepare(job, folder, name)
    request = Request(changes, allow_changed=True, last_step=trial.STEPS, rehearsal=name)
    output = job.folder / FOLDER / f"{name}_{job.group.rank if job.group else 0}.txt"
    output.parent.mkdir(exist_ok=True)
    arguments = [str(folder), json.dumps(asdict(request))]
    child = _fork(run, arguments, output) if can_fork() else _launch(arguments, output)
    status = _wait(child, job)
    if job.stop.requested():
        raise Interrupted
    if status not in (0, 128 + signal.SIGTERM):
        text = output.read_text(errors="replace")
        if name == "second":
            text += f"(in a rehearsed resume after step 1, as after a crash; {_SKIP})\n"
        summary = folder / "summary.json"
        known = record.read_summary(folder) if job.leads and summary.exists() else {}
        raise ChildFailed(status, text, str(known.get("error") or "the rehearsal failed"))
    return _read(folder) if job.leads else Attempt({}, {}, {})


def _prepare(job: Job, folder: Path, name: str) -> None:
    """Create a child's run folder, or take back the first child's to its checkpoint of step 1."""
    if name == "second":
        os.replace(folder / "checkpoints/previous.pt", folder / "checkpoints/last.pt")
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    workers = min(job.settings.data.num_workers, 1)  # it loads both steps, and keeps its state
    often = {"log_every_steps": 1, "checkpoint_every_steps": 1, "validate_every_epochs": 0}
    changes: dict[str, Any] = {f"trainer.{key}": value for key, value in often.items()}
    changes |= {"fingerprint.every_steps": 1, "data.num_workers": workers, "logger": {}}
    settings = Request(changes).applied_to(job.settings)
    text = OmegaConf.to_yaml(settings, resolve=True)
    record.write_atomically(folder / "config.yaml", text)


def can_fork() -> bool:
    """Return whether a fork is safe: no other threads, no GPU in use, not on macOS."""
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return sys.platform == "linux" and threading.active_count() == 1 and not is_used


def _fork(run: Run, arguments: list[str], output: Path) -> int:
    """Start a child by a fork, which has imported PyTorch already; return its process id."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    nothing, written = os.open(os.devnull, os.O_RDWR), os.open(output, os.O_WRONLY | os.O_CREAT)
    for descriptor, target in ((nothing, 0), (nothing, 1), (written, 2)):
        os.dup2(descriptor, target)
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__  # not those that write to train.log
    sys.breakpointhook = lambda *_, **__: None  # nobody could see its prompt
    os.environ["TQDM_DISABLE"] = "1"
    status = 1
    try:
        status = exit_status(lambda: run(arguments))
        print(end="", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _launch(arguments: list[str], output: Path) -> int:
    """Start a child as a run is started; return its process id."""
    command = [sys.executable, "-m", "seedbed.worker", *arguments]
    environment = {**os.environ, "TQDM_DISABLE": "1", "PYTHONBREAKPOINT": "0"}
    with open(output, "w") as file:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        return subprocess.Popen(command, env=environment, stderr=file, **streams).pid


def _wait(pid: int, job: Job) -> int:
    """Wait for a child; return its exit status. Stop it if the run is asked to stop."""
    began, is_said = time.monotonic(), False
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if job.stop.requested():
            os.kill(pid, signal.SIGKILL)
        elif job.leads and not is_said and time.monotonic() - began > _QUIET_SECONDS:
            is_said = True
            print(f"starting and resuming the run once before it begins; {_SKIP}", flush=True)
        time.sleep(_POLL_SECONDS)


def _read(folder: Path) -> Attempt:
    metrics = {
        int(row["step"]): row for row in record.read_metrics(folder) if row["phase"] == "train"
    }
    fingerprints = {int(row["step"]): row for row in record.read_fingerprints(folder)}
    return Attempt(fingerprints, metrics, record.read_json(folder / trial.NOTES))


def _first_difference(a: Attempt, b: Attempt, step: int) -> str | None:
    """Return the first stage of a step, in causal order, that differs; None if none does."""
    x, y = a.values(step), b.values(step)
    return next((name for name in trial.STAGES_COMPARED if x.get(name) != y.get(name)), None)


def _explanation(
    job: Job, run: Run, first: Attempt, second: Attempt, stage: str, fills: bool
) -> str:
    """Return the error line for a resumed step that differs in a stage.

    The cause is state that the checkpoint lacks, unless the step does not repeat at all: then two
    children that start anew differ, too.
    """
    third = _run_child(job, run, "third")

    def unstable(a: Attempt, b: Attempt) -> str | None:
        differing = [_first_difference(a, b, step) for step in sorted(a.fingerprints)]
        return next(filter(None, differing), None)

    if job.decide("unstable", lambda: unstable(first, third)):
        fourth = _run_child(job, run, "fourth")
        found = job.decide("unfilled", lambda: unstable(third, fourth))
        if found is None and fills:
            return _unwritten("other values")
        return not_repeated(found or stage) + trial.advice(found or stage, second.notes)
    return trial.refusal(stage, second.notes)


def not_repeated(stage: str, step: int = trial.STEPS) -> str:
    """Return the error line for a step that does not repeat, whether resumed or not."""
    return (
        f"{trial.key_of(stage)}: expected the same {stage} each time that step {step} is taken, "
        "got another; draw from the global generators, and look for files that a step changes, "
        "memory that nothing wrote (torch.empty), a nondeterministic kernel or faulty hardware"
    )


def _unwritten(got: str) -> str:
    return (
        "model: expected the same bits with and without filled memory, got "
        f"{got}: it reads memory that nothing wrote; look for torch.empty, new_empty and out=, or "
        "set determinism.fill_uninitialized_memory=false to skip this check"
    )
