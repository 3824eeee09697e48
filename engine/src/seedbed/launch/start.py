"""From a checked configuration to a training process: its environment, folder and command."""

import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import determinism, project, record, signals
from seedbed.errors import InputError
from seedbed.launch import process
from seedbed.record import terminal


def start(config: DictConfig, folder: Path) -> int:
    """Create the run folder and train in it, in a process of its own; return the exit status."""
    environment = training_environment(config)
    create_run_folder(folder, config)
    return run_worker(config, folder, environment)


def training_environment(config: DictConfig) -> dict[str, str]:
    """Return the environment variables that the training process starts with.

    It imports from this project, not from the current folder: that may be somebody's record.
    """
    preset: Mapping[str, Any] = OmegaConf.to_container(config.determinism)  # type: ignore[assignment]
    environment = determinism.environment_variables(preset, os.environ)
    root = project.root()
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    places = list(dict.fromkeys([*places, str(root / "src"), str(root)]))
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    environment[project.PROJECT] = str(root)
    if config.trainer.processes * (preset["threads"] or 1) > (os.cpu_count() or 1):
        # Threads that wait for each other, spinning, hold the cores that others need: a step may
        # take many times as long. That they sleep instead changes no bit.
        environment.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return environment


def require_name(key: str, folder: str) -> None:
    """Raise InputError for a folder without a name: Hydra would take the current one for it."""
    if not str(folder).strip():
        raise InputError(
            f"{key}: expected a folder, got an empty name; give it one, or set the variable of the "
            "shell that it comes from"
        )


def create_run_folder(folder: Path, config: DictConfig) -> None:
    """Create the run folder and its config.yaml; a run, or a folder of others, is never used.

    A run that failed before its first step left nothing to lose: its folder may be used again. Of
    two runs that want one folder in the same instant one gets the lock and the other is refused.
    Whenever the process is killed, there is a whole config.yaml or none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        had_lock = (folder / ".lock").exists()
        with record.lock(folder):
            # Launchers may have started train.log; what begins with a dot, a run that was killed.
            held = [n for n in sorted(os.listdir(folder)) if n[0] != "." and n != "train.log"]
            if not held or failed_at_once(folder):
                yaml = OmegaConf.to_yaml(config, resolve=True)
                record.write_atomically(folder / "config.yaml", yaml)
                return
    except OSError as error:
        with suppress(OSError):
            (folder / ".lock").unlink()
        raise InputError(
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{folder}; choose another, or free space"
        ) from None
    if not had_lock:
        (folder / ".lock").unlink(missing_ok=True)
    resume = ", or resume it by scripts/resume.py" if "config.yaml" in held else ""
    raise InputError(
        f"hydra.run.dir: expected a new or empty folder, got {folder}, which holds {held[0]}; "
        f"choose another{resume}"
    )


def failed_at_once(folder: Path) -> bool:
    """Return whether a folder holds a run that failed before it recorded a step."""
    if not record.is_run(folder) or any((folder / "checkpoints").glob("*.pt")):
        return False
    try:
        summary = record.read_summary(folder)
    except InputError:  # damaged, or it never began
        return False
    return summary.get("status") == "failed" and not summary.get("steps")


def worker_command(config: DictConfig, folder: Path, request: str | None = None) -> list[str]:
    """Return the command that trains in a run folder, for the project's folder.

    Args:
        request: a `config.Request` as text.
    """
    folder, root = folder.absolute(), project.root().absolute()
    folder = folder.relative_to(root) if folder.is_relative_to(root) else folder
    several = config.trainer.processes > 1
    module = "seedbed.distributed.worker" if several else "seedbed.worker"
    return [sys.executable, "-m", module, str(folder), *([request] if request else [])]


def run_worker(
    config: DictConfig, folder: Path, environment: Mapping[str, str], request: str | None = None
) -> int:
    """Run the training processes to their end, passing signals on; return the exit status."""
    command, count = worker_command(config, folder, request), config.trainer.processes
    alone = process.alone(environment)
    status = process.run_passing_signals(command, alone, count, signals.held())
    killer = signals.killed_by(status)
    if killer and count == 1:  # of several, the others tell
        print(f"killed by {killer}\nresume it: {terminal.resume_command(folder)}", file=sys.stderr)
    elif killer:
        note_death(folder, killer)
    return status


def note_death(folder: Path, killer: str) -> None:
    """Note in summary.json that a run of several processes failed: killed, rank 0 could not."""
    with suppress(InputError, OSError), record.lock(folder):
        summary = record.read_summary(folder)
        if summary.get("status") == "running":
            line = (
                f"rank 0: expected to work on with the others, got {killer}; see why it ended, "
                "then resume with scripts/resume.py"
            )
            record.write_json(
                folder / "summary.json", summary | {"status": "failed", "error": line}
            )


def discard_if_empty(folder: Path) -> None:
    """Remove the folder that Hydra made for a run that was refused."""
    if folder == Path.cwd():  # which somebody else made
        return
    with suppress(OSError):
        folder.rmdir()


def objective(folder: Path) -> float | None:
    """Return the metric that the run's `objective` names, for Hydra's sweepers.

    None, a failed trial for Optuna, if the run did not finish or the metric is not a number: what
    a run had reached is no result.
    """
    if not record.is_run(folder):
        return None
    summary = record.read_summary(folder)
    value = summary.get("objective", {}).get("value")
    if summary.get("status") != "finished" or value is None or math.isnan(value):
        return None
    return float(value)
