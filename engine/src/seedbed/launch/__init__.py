"""Starting and resuming runs: their folders, their processes, and the signals passed on to them."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import project, record, signals
from seedbed.config import Request, check, entries, interpolations
from seedbed.errors import InputError
from seedbed.launch.environment import training_environment as training_environment
from seedbed.record import Origin, code, files, text, untrusted

# The variable that names the file through which the processes of one machine find each other.
STORE = "SEEDBED_STORE"
# How processes find each other; the values set by a cluster or torchrun are not passed on.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", STORE),
)
# Settings of how a run is executed, which may differ when its command is given again.
_EXECUTION = ("data.", "trainer.", "fingerprint.")
_ENDING_SECONDS = 30.0  # for a process to end after another one has failed


def start(config: DictConfig, folder: Path, templates: Mapping[str, str] = {}) -> int:
    """Train in a run folder, in new processes; return the exit status.

    The folder is created. If a run of the same settings was begun there, it is resumed; if it has
    finished, there is nothing to do. So a scheduler may give a command again.
    """
    if is_begun(folder):
        values = asked_again(config, folder, "hydra.run.dir")
        if not is_finished(folder):
            return resume(folder, values)
        print(f"{folder}: finished before, nothing to do", flush=True)
        for line in changed_since(folder):
            print(line, file=sys.stderr, flush=True)
        return 0
    environment = training_environment(config)
    create_run_folder(folder, config, templates)
    return run_worker(config, folder, environment)


def asked_again(config: DictConfig, folder: Path, key: str) -> dict[str, Any]:
    """Return the values that a begun run is to be resumed with, such as `data.num_workers`.

    Raise InputError if `config` asks for other bits than the run's.
    """
    before, now = untrusted.read_dict(folder), OmegaConf.to_container(config)
    asked = [p for p, name, x in entries(now) if name == "statistics" and x is None]
    values: dict[str, Any] = {}
    for change in record.changes(Origin(before, {}), Origin(now, {})):  # type: ignore[arg-type]
        if not change.alters_bits:
            values |= {change.key: change.now} if change.key.startswith(_EXECUTION) else {}
        elif not any(f"{change.key}.".startswith(f"{place}.") for place in asked):
            raise InputError(
                f"{change.key}: expected {change.before} as in {folder}, got {change.now}; undo "
                f"that, or choose another {key}"
            )
    return values


def is_begun(folder: Path) -> bool:
    """Return whether a folder has a run that did not fail before it recorded a step."""
    return (folder / "config.yaml").exists() and not _failed_early(folder)


def is_finished(folder: Path) -> bool:
    return record.is_run(folder) and record.read_summary(folder).get("status") == "finished"


def changed_since(*runs: Path) -> Iterator[str]:
    """Yield a warning of code and data that have changed since finished runs, if any have."""
    origins = [Origin({}, record.read_json(run / "environment.json")) for run in runs]
    known = {k: v for of in origins for k, v in of.environment.get("files_sha256", {}).items()}
    if changed := code.changed_here(*origins) + files.changed(known):
        have = "it" if len(runs) == 1 else "they"
        yield f"warning: code or data have changed since {have} ran: {code.some(changed)}"


def resume_run(folder: Path, overrides: Sequence[str], allow_changed: bool) -> int:
    """Check a request to resume one of the user's own runs, and do so; return the exit status."""
    recorded = record.read_config(folder)
    untrusted.require_no_way_out(folder)
    values = parse_overrides(overrides, recorded)
    values = interpolations.reached(values, recorded, interpolations.read(folder))
    return resume(folder, values, allow_changed)


def resume(folder: Path, values: Mapping[str, Any], allow_changed: bool = False) -> int:
    """Resume a run with new values of some keys; return the exit status."""
    request = Request(dict(values), allow_changed)
    settings = request.applied_to(record.read_config(folder))
    check(settings)
    record.require_unfinished(folder, request.settings)
    return run_worker(settings, folder, training_environment(settings), request)


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
            own = OmegaConf.create({**recorded, "logger": chosen})
            values[key] = OmegaConf.to_container(own.logger, resolve=True)
        elif is_new or isinstance(known, DictConfig):
            raise InputError(
                f"{key}: expected a key of the run's config.yaml that has a single value, got "
                f"{'a new key' if is_new else 'a group'}"
            )
        else:
            values[key] = one.value()
    return values


def create_run_folder(folder: Path, config: DictConfig, templates: Mapping[str, str] = {}) -> None:
    """Create the run folder and its config.yaml; raise InputError unless the folder is unused.

    With `templates`, of `interpolations.templates_of`, it can be overridden later as when composed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_unused(folder)  # first, so that no lock file is left in a used folder
        with record.lock(folder):  # of two runs, it refuses the second
            _require_unused(folder)
            if templates:
                record.write_json(folder / interpolations.FILE, templates)
            yaml = OmegaConf.to_yaml(config, resolve=True)
            record.write_atomically(folder / "config.yaml", yaml)
    except OSError as error:
        raise InputError(
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{folder}"
        ) from None


def _require_unused(folder: Path) -> None:
    """Raise InputError unless a folder is empty, or its run failed before it recorded a step."""
    # Launchers may have started train.log; a run that was killed may have left dotfiles.
    early = ("train.log", interpolations.FILE)
    there = [n for n in sorted(os.listdir(folder)) if n[0] != "." and n not in early]
    if there and not _failed_early(folder):
        raise InputError(
            f"hydra.run.dir: expected a new or empty folder, got {folder}, which holds {there[0]}; "
            "choose another"
        )


def _failed_early(folder: Path) -> bool:
    if record.is_run(folder) and not any((folder / "checkpoints").glob("*.pt")):
        with suppress(InputError):  # damaged
            summary = record.read_summary(folder)
            return summary.get("status") == "failed" and not summary.get("steps")
    return False


def worker_command(folder: Path, request: Request | None = None) -> list[str]:
    """Return the command that trains in a run folder, to be run in the project's folder."""
    folder, root = folder.absolute(), project.root().absolute()
    folder = folder.relative_to(root) if folder.is_relative_to(root) else folder
    asked = [json.dumps(asdict(request))] if request else []
    return [sys.executable, "-m", "seedbed.worker", str(folder), *asked]


def run_worker(
    config: DictConfig, folder: Path, environment: Mapping[str, str], request: Request | None = None
) -> int:
    command = worker_command(folder, request)
    status = run_passing_signals(command, environment, config.trainer.processes)
    if killer := signals.killed_by(status):
        print(f"killed by {killer}\nresume it: {text.resume_command(folder)}", file=sys.stderr)
    return status


def discard_if_empty(folder: Path) -> None:
    """Remove the folder that Hydra made for a run that was refused, if it is empty."""
    if folder != Path.cwd():  # not made by Hydra
        with suppress(OSError):
            folder.rmdir()


def objective(folder: Path) -> float | None:
    """Return the metric that the run's `objective` names; None if there is none: a failed trial."""
    summary = record.read_summary(folder) if record.is_run(folder) else {}
    value = summary.get("objective", {}).get("value")
    if summary.get("status") != "finished" or value is None or math.isnan(value):
        return None
    return float(value)


class Processes:
    """Processes that run the same command in parallel; a single one gets no rank."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], count: int = 1, **streams: Any
    ) -> None:
        """Start the processes in our terminal and process group, for Ctrl-C and breakpoint()."""
        variables = {name: value for name, value in environment.items() if name not in _RANKS}
        self._place = tempfile.TemporaryDirectory(prefix="seedbed-") if count > 1 else None
        self._all: list[subprocess.Popen[bytes]] = []
        for rank in range(count):
            if self._place is not None:
                variables |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
                variables |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
                variables[STORE] = f"{self._place.name}/store"
            here = project.root()  # paths such as data.root are relative to it
            self._all.append(subprocess.Popen(command, env=variables, cwd=here, **streams))

    def send_signal(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)

    def wait(self) -> int:
        """Wait for all processes and return the exit status; if one fails, end the others.

        Of several statuses, the likely cause is returned: first death by signal N (128 + N, as in
        a shell), then a crash (1). The death by signal of a process that we end does not count.
        """
        if len(self._all) == 1:
            self._all[0].wait()  # no others to watch: block
        expected = (None, 0, signals.DIFFERS, *signals.INTERRUPTED)
        while None in (codes := [process.poll() for process in self._all]):
            if any(code not in expected for code in codes):
                self.end(_ENDING_SECONDS)
                ended = zip(codes, self._all, strict=True)  # deaths since then are due to `end`
                codes = [max(each.returncode, 0) if code is None else code for code, each in ended]
                break
            time.sleep(0.02)
        if self._place is not None:
            self._place.cleanup()
        statuses = {code if code >= 0 else 128 - code for code in codes if code}
        return min(statuses, key=lambda s: (s in signals.INTERRUPTED, s < 128, s), default=0)

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
    command: Sequence[str], environment: Mapping[str, str], count: int = 1
) -> int:
    """Run a command in `count` processes with stop signals passed on; return the exit status."""
    with signals.held():  # until the processes call `signals.release`
        processes = Processes(command, environment, count)
        # Only the main thread can handle signals; a launcher may run us in another.
        is_main = threading.current_thread() is threading.main_thread()
        before = {
            number: signal.signal(number, lambda number, _: processes.send_signal(number))
            for number in (signals.heeded() if is_main else ())
        }
    try:
        return processes.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
