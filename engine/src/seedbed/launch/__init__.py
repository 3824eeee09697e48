"""Starting and resuming runs: their folders, their processes, and the signals passed on
to them."""

import json
import math
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import offline, project, record, signals
from seedbed.config import (
    Request,
    Settings,
    check,
    check_shards,
    interpolations,
    may_connect,
    require_trusted,
)
from seedbed.errors import LABEL, InputError, some
from seedbed.launch import folders as folders
from seedbed.launch.environment import training_environment as training_environment
from seedbed.launch.folders import create_run_folder as create_run_folder
from seedbed.record import text, untrusted

# The variable that names the file through which the processes of one machine find each
# other.
STORE = "SEEDBED_STORE"
# How processes find each other; the values set by a cluster or torchrun are not passed
# on.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", STORE),
)
started: list[Path] = []  # the run folders in which this process has started training
_ENDING_SECONDS = 30.0  # for a process to end after another one has failed
_PARENT = os.getppid()  # when this process started: torchrun may be killed soon after


def start(settings: Settings, folder: Path, templates: Mapping[str, str] = {}) -> int:
    """Train in a run folder, in new processes; return the exit status.

    The folder is created. If a run of the same settings was begun there, it is resumed;
    if it has finished, there is nothing to do, unless its code or data changed: then
    the status is 1. So a scheduler may give a command again.
    """
    if folders.is_begun(folder):
        values = folders.rerun_overrides(settings, folder, "hydra.run.dir")
        if not folders.is_finished(folder):
            return resume(folder, values)
        if changed := folders.changed_since(folder):
            print(
                f"error: {folder}: finished before code or data changed"
                f" ({some(changed)}); train in another folder (hydra.run.dir=...),"
                " or undo that",
                file=sys.stderr,
                flush=True,
            )
            return 1
        print(f"{folder}: finished before, nothing to do", flush=True)
        return 0
    environment = training_environment(settings)
    try:
        create_run_folder(folder, settings, templates)
    except InputError:
        if not folders.is_begun(folder):
            raise
        # Begun in this moment by an equal command, whose process the worker names if it
        # is alive.
        return start(settings, folder, templates)
    return run_worker(settings, folder, environment)


def resume_run(
    folder: Path,
    overrides: Sequence[str],
    allow_changed: bool,
    trust: Sequence[str] = (),
    online: bool = False,
) -> int:
    """Check a request to resume a run, and do so; return the exit status.

    A run that is not this checkout's own is built as by any command that reads records:
    with the classes of configs/ and `trust`, and without addresses unless `online`.
    """
    recorded = record.read_config(folder)
    require_trusted(recorded, folder, trust)
    values = parse_overrides(overrides, recorded)
    values = interpolations.reached(values, recorded, interpolations.read(folder))
    # Of a run that was killed before its first process wrote what had started it.
    words = ["python", "scripts/resume.py", str(folder), *overrides]
    os.environ["SEEDBED_COMMAND"] = shlex.join(words)
    return resume(folder, values, allow_changed, may_connect(folder, online))


def resume(
    folder: Path,
    values: Mapping[str, Any],
    allow_changed: bool = False,
    online: bool = True,
) -> int:
    """Resume a run with new values of some keys; return the exit status."""
    untrusted.reject_external_links(folder)
    request = Request(dict(values), allow_changed)
    settings = check(request.applied_to(record.read_config(folder)))
    folders.require_readable(settings)
    record.require_unfinished(folder, request.settings)
    environment = training_environment(settings) | offline.variables(online)
    return run_worker(settings, folder, environment, request)


def parse_overrides(
    overrides: Sequence[str], recorded: DictConfig, free: str | None = None
) -> dict[str, Any]:
    """Return the values of `key=value` overrides, in Hydra's grammar, by key.

    Only the section `free` may get keys that the run's configuration does not have.
    """
    from seedbed.config import compose  # imports Hydra

    values: dict[str, Any] = {}
    missing: Any = object()
    for one in compose.parse(overrides):
        key = one.key_or_group
        known = OmegaConf.select(recorded, key, default=missing)
        is_new = known is missing and key.partition(".")[0] != free
        if key == "logger":
            # As Hydra composes it; its ${...} refer to the run's own configuration.
            chosen = compose.compose(str(one.input_line)).logger
            merged = OmegaConf.create({**recorded, "logger": chosen})
            values[key] = OmegaConf.to_container(merged.logger, resolve=True)
        elif is_new or isinstance(known, DictConfig):
            raise InputError(
                f"{key}: expected a key of the run's config.yaml that has a single"
                f" value, got {'a new key' if is_new else 'a group'}"
            )
        else:
            values[key] = one.value()
    return values


def worker_command(task: str, *arguments: str) -> list[str]:
    """Return the command that does a task of `seedbed.worker`."""
    return [sys.executable, "-m", "seedbed.worker", task, *arguments]


def training_command(folder: Path, request: Request | None = None) -> list[str]:
    """Return the command that trains in a run folder, to be run in the project's
    folder."""
    folder = folder.absolute()
    root = project.root().absolute()
    folder = folder.relative_to(root) if folder.is_relative_to(root) else folder
    asked = [json.dumps(asdict(request))] if request else []
    return worker_command("train", str(folder), *asked)


def run_worker(
    settings: Settings,
    folder: Path,
    environment: Mapping[str, str],
    request: Request | None = None,
) -> int:
    command = training_command(folder, request)
    count = settings.trainer.processes
    ranks = world_size()
    require_ranks(settings)
    started.append(folder)
    status = run_passing_signals(
        command, environment, 1 if ranks > 1 else count, ranks > 1
    )
    if killer := signals.killed_by(status):
        for line in (
            f"killed by {killer}",
            f"resume it: {text.resume_command(folder)}",
        ):
            print(os.environ.get(LABEL, "") + line, file=sys.stderr)
    return 0 if status == signals.PRUNED else status


def world_size() -> int:
    """Return the number of ranks that torchrun or srun has started; 1 without them."""
    if not (text := os.environ.get("WORLD_SIZE", "1")).isdecimal():
        raise InputError(
            f"WORLD_SIZE: expected a number, as of torchrun, got {text or 'none'}"
        )
    return int(text)


def require_ranks(settings: Settings) -> None:
    """Raise InputError if settings do not fit the ranks of torchrun or srun."""
    ranks = world_size()
    asked = settings.trainer.processes
    if ranks > 1 and asked not in (1, ranks):
        raise InputError(
            f"trainer.processes: expected 1, or {ranks} (WORLD_SIZE), got {asked};"
            " leave it out"
        )
    check_shards(settings, ranks)


def discard_if_empty(folder: Path) -> None:
    """Remove the folder that Hydra made for a run that was refused, if it is empty."""
    if folder != Path.cwd():  # not made by Hydra
        with suppress(OSError):
            folder.rmdir()


def objective(folder: Path) -> float | None:
    """Return the metric that the run's `objective` names; None if there is none: a
    failed trial."""
    summary = record.read_summary(folder) if record.is_run(folder) else {}
    value = summary.get("objective", {}).get("value")
    if summary.get("status") != "finished" or value is None or math.isnan(value):
        return None
    return float(value)


class ChildProcesses:
    """Processes that run the same command in parallel; a single one gets no rank."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        count: int = 1,
        keeps_rank: bool = False,
        **streams: Any,
    ) -> None:
        """Start the processes in our terminal and process group, for Ctrl-C and
        breakpoint().

        A single one may keep our rank, of torchrun or srun.
        """
        # A job of a launcher, and a rank of torchrun, end with what has started them.
        is_rank = keeps_rank and "TORCHELASTIC_RUN_ID" in environment
        self._watches_parent = is_rank or bool(environment.get(LABEL))
        # a launcher may fork its jobs
        self._parent = _PARENT if is_rank else os.getppid()
        variables = {
            k: v for k, v in environment.items() if keeps_rank or k not in _RANKS
        }
        if count > 1 or keeps_rank:  # a lost rank is one line of ours, not many of C++
            variables.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        self._store_folder = (
            tempfile.TemporaryDirectory(prefix="seedbed-") if count > 1 else None
        )
        self._all: list[subprocess.Popen[bytes]] = []
        for rank in range(count):
            if self._store_folder is not None:
                variables |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
                variables |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
                variables[STORE] = f"{self._store_folder.name}/store"
            root = project.root()  # paths such as data.root are relative to it
            self._all.append(
                subprocess.Popen(command, env=variables, cwd=root, **streams)
            )

    def send_signal(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)

    def wait(self) -> int:
        """Wait for all processes and return the exit status; if one fails, end the
        others.

        Of several statuses, the likely cause is returned: first death by signal N (128
        + N, as in a shell), then a crash (1). The death by signal of a process that we
        end does not count.
        """
        if len(self._all) == 1 and not self._watches_parent:
            self._all[0].wait()  # no others to watch: block
        expected = (None, 0, signals.DIFFERS, signals.PRUNED, *signals.INTERRUPTED)
        while None in (codes := [process.poll() for process in self._all]):
            if any(code not in expected for code in codes):
                self.end(_ENDING_SECONDS)
                # deaths since then are due to `end`
                ended = zip(codes, self._all, strict=True)
                codes = [
                    max(process.returncode, 0) if code is None else code
                    for code, process in ended
                ]
                break
            if self._watches_parent and os.getppid() != self._parent:  # killed
                self._watches_parent = False
                self.send_signal(signal.SIGTERM)
            time.sleep(0.02)
        if self._store_folder is not None:
            self._store_folder.cleanup()
        statuses = {code if code >= 0 else 128 - code for code in codes if code}
        return min(
            statuses, key=lambda s: (s in signals.INTERRUPTED, s < 128, s), default=0
        )

    def end(self, seconds: float) -> None:
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + seconds
        for process in self._all:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()
            process.wait()


def run_passing_signals(
    command: Sequence[str],
    environment: Mapping[str, str],
    count: int = 1,
    keeps_rank: bool = False,
) -> int:
    """Run a command in `count` processes with stop signals passed on; return the exit
    status."""
    with signals.held():  # until the processes call `signals.release`
        processes = ChildProcesses(command, environment, count, keeps_rank)
        # Only the main thread can handle signals; a launcher may run us in another.
        is_main = threading.current_thread() is threading.main_thread()
        before = {
            number: signal.signal(
                number, lambda number, _: processes.send_signal(number)
            )
            for number in (signals.handled_signals() if is_main else ())
        }
    try:
        return processes.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
