"""From a checked configuration to a training process: environment, run folder, command."""

import json
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import determinism, project, record, signals
from seedbed.config import Request, interpolations
from seedbed.errors import InputError
from seedbed.launch.process import run_passing_signals
from seedbed.record import text


def start(config: DictConfig, folder: Path, templates: Mapping[str, str] = {}) -> int:
    """Create the run folder and train in it, in new processes; return the exit status."""
    environment = training_environment(config)
    create_run_folder(folder, config, templates)
    return run_worker(config, folder, environment)


def training_environment(config: DictConfig) -> dict[str, str]:
    """Return the environment variables that the training process starts with.

    Imports come from this project, not the current folder, which may be an untrusted record.
    """
    preset: Mapping[str, Any] = OmegaConf.to_container(config.determinism)  # type: ignore[assignment]
    environment = determinism.environment_variables(preset, os.environ)
    root = project.root()
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    places = list(dict.fromkeys([*places, str(root / "src"), str(root)]))
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    environment[project.PROJECT] = str(root)
    if "OMP_WAIT_POLICY" not in environment:
        # Threads that wait for each other spin on cores that other processes may need: next to two
        # busy processes, a step took many times as long. How long they spin changes no bit.
        if config.trainer.processes * (preset["threads"] or 1) > (os.cpu_count() or 1):
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        else:
            environment.setdefault("GOMP_SPINCOUNT", "100000")  # loop iterations, not 300,000
    return environment


def create_run_folder(folder: Path, config: DictConfig, templates: Mapping[str, str] = {}) -> None:
    """Create the run folder and its config.yaml; raise InputError unless the folder is unused.

    With `templates`, of `interpolations.templates_of`, it can be overridden later as when composed.

    If two runs want the same folder at the same time, one gets the lock and the other is refused.
    config.yaml is written atomically: if the process is killed, it is complete or missing.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _require_unused(folder)  # first, so that no lock file is left in a used folder
        with record.lock(folder):
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
    if record.is_run(folder) and not any((folder / "checkpoints").glob("*.pt")):
        with suppress(InputError):  # damaged
            summary = record.read_summary(folder)
            if summary.get("status") == "failed" and not summary.get("steps"):
                return
    if there:
        resume = ", or resume it by scripts/resume.py" if "config.yaml" in there else ""
        raise InputError(
            f"hydra.run.dir: expected a new or empty folder, got {folder}, which holds {there[0]}; "
            f"choose another{resume}"
        )


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
    """Return the metric that the run's `objective` names, for Hydra's sweepers.

    None, a failed trial for Optuna, if the run did not finish or the metric is missing or NaN: the
    metric of an unfinished run is not a result.
    """
    summary = record.read_summary(folder) if record.is_run(folder) else {}
    value = summary.get("objective", {}).get("value")
    if summary.get("status") != "finished" or value is None or math.isnan(value):
        return None
    return float(value)
