"""The resume check: a run that begins is started and resumed once before, in processes
of its own.

The training process forks before it imports user code or touches a GPU. A first child
takes two steps, with a checkpoint after each. A second child resumes from the
checkpoint of step 1, and must take the same second step. Then the process itself
trains, and its first two steps must be those of the first child. Nothing is reset or
rebuilt, so what a checkpoint lacks is missing in the second child, wherever it was
kept, and the run itself is not affected.
"""

import hashlib
import json
import os
import pdb
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from subprocess import DEVNULL, Popen
from tempfile import TemporaryFile
from typing import IO, Any

import torch
from omegaconf import OmegaConf

from seedbed import config, environment, launch, project, record
from seedbed.config import Request
from seedbed.errors import LABEL, ChildFailed, InputError, Interrupted, exit_on_errors
from seedbed.names import STAGES, flatten
from seedbed.record import Origin, Row, change, code, untrusted
from seedbed.record.results import is_mean
from seedbed.run import failures, trial
from seedbed.run.job import Job

_FOLDER = ".rehearsal"  # in the run folder
# in the project: one serves all runs of equal code and settings
_PASSED = ".seedbed/rehearsed"
_MOST_PASSED = 500  # the newest, of some 10 KB each
# Settings that a rehearsal does not depend on, although they may alter bits.
_SEEDS = ("seed", "seeds.*", "*.seed")
Run = Callable[[Sequence[str]], int]
# What a child recorded: by step, values by their name in `failures.WHERE`, and notes of
# the last.
Attempt = dict[int, dict[str, Any]]
_FILL = "determinism.fill_uninitialized_memory"
_POLL_SECONDS = 0.003
_QUIET_SECONDS = 5.0
_RATES = "learning_rate"
_LOGGED = ("logged values", "values of callbacks")  # on which training does not depend
_IN_FILLED_MEMORY = (
    "(while memory that nothing wrote holds NaN: look for torch.empty, too, or set"
    f" {_FILL}=false)"
)
_SKIP = "trainer.rehearse_resume=false skips the resume check"


@dataclass
class Rehearsed:
    """The result of a rehearsal, for the run itself."""

    fingerprints: dict[int, Row]  # of the steps that the run must still repeat, if any
    warning: str = ""  # a line to log
    note: Path | None = None  # where to note that the run has repeated them

    def compare(self, rows: Iterable[Row], imported: dict[str, str]) -> None:
        """Raise InputError if the run's rows differ; note once that all steps were
        repeated."""
        repeats = False
        for row in rows:
            step = int(row["step"])
            expected = self.fingerprints.pop(step, None)
            if expected is None:
                continue
            repeats = True
            if names := record.differing(expected, row, expected):
                raise InputError(failures.not_repeated(names[0], step))
        if repeats and not self.fingerprints and not self.warning and self.note:
            _note(self.note, imported)


def rehearse(job: Job, run: Run) -> Rehearsed:
    """Start and resume a run that is about to begin, unless an equal one has passed
    before.

    Raises:
        InputError: the resumed child took another step, or another evaluation.
        ChildFailed: a child failed, as the run would.
    """
    machine = environment.machine()
    if not job.ranks.decide("rehearsal", lambda: _is_due(job, machine)):
        return Rehearsed({})
    # Before the run fills in its settings.
    note = _passed(job, machine) if job.ranks.leads else None
    try:
        first = _run_child(job, run, "first")
        _take_counted(job)
        # nothing to resume
        if job.ranks.decide("is one step", lambda: trial.STEPS not in first):
            return Rehearsed(_fingerprints(first), note=note)
        second = _run_child(job, run, "second")
        line = job.ranks.decide("verdict", lambda: _verdict(first, second))
        if line is not None:
            raise InputError(line)
    finally:
        if job.ranks.leads:
            shutil.rmtree(job.folder / _FOLDER, ignore_errors=True)
    return Rehearsed(_fingerprints(first), _restarted(first, second), note)


def _verdict(first: Attempt, second: Attempt) -> str | None:
    """Return an error line if a stage differs on which training depends."""
    stage = _first_difference(first, second)
    if stage is None or stage in _LOGGED:
        return None
    return failures.refusal(stage, second.get(trial.STEPS, {}))


def _restarted(first: Attempt, second: Attempt) -> str:
    """Return a warning of logged values that differ, such as a counter, or an empty
    one."""
    logged = [
        (
            {
                name: value
                for key in _LOGGED
                for name, value in attempt[trial.STEPS][key].items()
            }
            if attempt
            else {}
        )
        for attempt in (first, second)
    ]
    differing = {*record.differing(logged[0], logged[1], logged[0])}
    # The means of an epoch differ because its values do.
    differing -= {f"{name}_epoch" for name in differing}
    if not differing:
        return ""
    return (
        f"warning: {', '.join(sorted(differing))} restarts in a resumed run (in"
        " metrics.csv, not in the weights); keep what a method counts in buffers of"
        " the model, what a callback counts in its state_dict"
    )


def _take_counted(job: Job) -> None:
    """Take over the lengths of streams, so that they are not counted once more."""

    def read() -> Any:
        return untrusted.read_dict(job.folder / _FOLDER)["data"].get("stream_lengths")

    if (lengths := job.ranks.decide("stream lengths", read)) is not None:
        job.settings.data.stream_lengths = lengths
        job.settings.plain["data"]["stream_lengths"] = lengths


def _is_due(job: Job, machine: Mapping[str, Any]) -> bool:
    """Return whether to rehearse; replays are compared with their record instead."""
    trainer = job.settings.trainer
    preset = job.settings.determinism
    promises = config.promises_bits(preset.on_nondeterministic) and preset.seeding
    is_other = job.is_resuming or job.request.record or job.request.rehearsal
    if is_other or not (trainer.rehearse_resume and promises) or trainer.max_steps == 1:
        return False
    with suppress(OSError, InputError):
        kept = untrusted.read_json(_passed(job, machine))
        return bool(code.changed_here(Origin({}, kept)))
    return True


def _passed(job: Job, machine: Mapping[str, Any]) -> Path:
    """Return the file that notes a rehearsal of these settings and data on this
    machine."""
    settings = flatten(job.settings.plain)
    serious = ("data.", "callbacks.", "trainer.shard")
    neutral = [key for key in change.NEUTRAL_KEYS if not key.startswith(serious)]
    relevant = {
        k: v for k, v in settings.items() if not change.matches(k, (*neutral, *_SEEDS))
    }
    stamps = environment.file_stamps(job.settings.plain)
    parts = [relevant, machine, os.environ.get("WORLD_SIZE"), stamps]
    digest = hashlib.sha256(
        json.dumps(parts, sort_keys=True, default=str).encode()
    ).hexdigest()
    return project.root() / _PASSED / f"{digest[:32]}.json"


def _note(path: Path, imported: Mapping[str, str]) -> None:
    """Note a rehearsal that has passed, and forget the oldest ones."""
    with suppress(OSError):  # the project's folder is read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write_json(path, {"imported_files": imported})
        notes = sorted(
            path.parent.glob("*.json"), key=lambda note: note.stat().st_mtime
        )
        for note in notes[:-_MOST_PASSED]:
            note.unlink()


def _run_child(job: Job, run: Run, name: str) -> Attempt:
    """Run a child of the rehearsal in each rank; on rank 0, return what it recorded.

    The `second` resumes the run of the `first`, in which memory that nothing wrote may
    be filled with NaN.
    """
    folder = job.folder / _FOLDER
    fills = (
        name == "first"
        and job.settings.determinism.fill_uninitialized_memory == "rehearsal"
    )
    # Before any child reads it.
    job.ranks.decide(f"prepared {name}", lambda: _prepare(job, name, folder))
    changes = _changes(job, name, fills)
    request = Request(changes, allow_changed=True, rehearsal=name)
    arguments = [str(folder), json.dumps(asdict(request))]
    # A fork is safe without other threads and a GPU in use, and not on macOS.
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    forks = sys.platform == "linux" and threading.active_count() == 1 and not is_used
    with TemporaryFile() as output:  # without a name: ranks end at different times
        start = partial(_fork, run) if forks else _launch
        status = _wait(start(arguments, output), job, is_said=name != "first")
        output.seek(0)
        text = output.read().decode(errors="replace")
    if job.stop.requested():
        raise Interrupted
    if status not in (0, 128 + signal.SIGTERM):
        raise _failure(job, folder, name, fills, status, text)
    return _read(folder) if job.ranks.leads else {}


def _changes(job: Job, name: str, fills: bool) -> dict[str, Any]:
    """Return the settings in which a child differs from the run."""
    never = 1 << 30  # not 0, which schedule=plateau refuses
    often = {
        "log_every_steps": 1,
        "checkpoint_every_steps": 1,
        "validate_every_epochs": never,
    }
    often |= {"validate_every_steps": 0, "keep_checkpoint_every_steps": 0}
    changes: dict[str, Any] = {f"trainer.{key}": value for key, value in often.items()}
    changes |= {"fingerprint.every_steps": 1, "logger": {}}
    changes[_FILL] = fills or job.settings.determinism.fill_uninitialized_memory
    # it loads both steps, and keeps its state
    workers = min(job.settings.data.num_workers, 1)
    changes["data.num_workers"] = 0 if name == "second" else workers
    return changes


def _prepare(job: Job, name: str, folder: Path) -> None:
    """Write the folder that the children of all ranks read."""
    if name == "second":  # from the checkpoint of step 1
        os.replace(folder / "checkpoints/previous.pt", folder / "checkpoints/last.pt")
        (folder / trial.NOTES).unlink()  # it writes its own
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    record.write_atomically(
        folder / "config.yaml", OmegaConf.to_yaml(job.settings.plain)
    )


def _failure(
    job: Job, folder: Path, name: str, fills: bool, status: int, text: str
) -> ChildFailed:
    """Return the error of a child, with what it said and what it recorded."""
    # else another rank's child says why
    if not text and (job.ranks.count == 1 or status != 2):
        text = f"error: the process ended with status {status} and without a message\n"
    if name == "second":
        text += f"(resumed after step 1, as after a crash; {_SKIP})\n"
    elif fills and "finite" in text:
        text = f"{text.rstrip()} {_IN_FILLED_MEMORY}\n"
    known = (
        record.read_summary(folder) if job.ranks.leads and record.is_run(folder) else {}
    )
    return ChildFailed(
        status, text, str(known.get("error") or "the resume check failed")
    )


def _fork(run: Run, arguments: list[str], output: IO[bytes]) -> int:
    """Start a child by a fork, which has imported PyTorch already; return its process
    id."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, target in ((nothing, 0), (nothing, 1), (output.fileno(), 2)):
        os.dup2(descriptor, target)
    # not those that write to train.log
    sys.stdout = sys.__stdout__
    sys.stderr = sys.__stderr__
    # nobody could see a prompt
    sys.breakpointhook = pdb.set_trace = lambda *_, **__: None
    os.environ |= {"TQDM_DISABLE": "1", LABEL: ""}  # the run adds its label
    status = 1
    try:
        with exit_on_errors():
            status = run(arguments)
        print(end="", file=sys.stderr, flush=True)
    except SystemExit as end:
        status = int(end.code or 0)
    finally:
        os._exit(status)


def _launch(arguments: list[str], output: IO[bytes]) -> int:
    """Start a child as a run is started; return its process id."""
    command = launch.worker_command("train", *arguments)
    environment = {
        **os.environ,
        "TQDM_DISABLE": "1",
        "PYTHONBREAKPOINT": "0",
        LABEL: "",
    }
    return Popen(
        command, env=environment, stdin=DEVNULL, stdout=DEVNULL, stderr=output
    ).pid


def _wait(pid: int, job: Job, is_said: bool) -> int:
    """Wait for a child; return its exit status. Stop it if the run is asked to stop."""
    began = time.monotonic()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if job.stop.requested():
            os.kill(pid, signal.SIGKILL)
        elif (
            job.ranks.leads
            and not is_said
            and time.monotonic() - began > _QUIET_SECONDS
        ):
            is_said = True
            print(
                f"starting and resuming the run once before it begins; {_SKIP}",
                flush=True,
            )
        time.sleep(_POLL_SECONDS)


def _read(folder: Path) -> Attempt:
    attempt: Attempt = {
        int(row["step"]): {**row} for row in record.read_fingerprints(folder)
    }
    for row in record.read_metrics(folder):
        if row["phase"] == "train":
            cells = record.values_of(row)
            logged = {name: x for name, x in cells.items() if not is_mean(name, cells)}
            rates = {
                name: logged.pop(name) for name in [*logged] if name.startswith(_RATES)
            }
            attempt[int(row["step"])] |= {
                "learning rate": rates,
                "logged values": logged,
            }
    if trial.STEPS in attempt:  # else the run has ended before
        for step, notes in record.read_json(folder / trial.NOTES).items():
            attempt[int(step)] |= notes
    return attempt


def _fingerprints(attempt: Attempt) -> dict[int, Row]:
    return {
        step: {name: values[name] for name in STAGES}
        for step, values in attempt.items()
    }


def _first_difference(a: Attempt, b: Attempt) -> str | None:
    """Return the first stage, in causal order, that differs in any step; None if none
    does."""
    stages = {
        stage
        for step in a
        for stage in record.differing(a[step], b[step], failures.WHERE)
    }
    return next((stage for stage in failures.WHERE if stage in stages), None)
