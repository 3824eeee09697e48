"""From a checked configuration to a training process: run folder, environment, signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import determinism, record
from seedbed.errors import InputError

INTERRUPTED = {128 + signal.SIGINT: signal.SIGINT, 128 + signal.SIGTERM: signal.SIGTERM}


def start(config: DictConfig, folder: Path) -> int:
    """Make a run folder of an empty or new folder and train in it; return the exit status."""
    environment = training_environment(config)
    claim(folder, config)
    return run_worker(config, folder, environment)


def training_environment(config: DictConfig) -> dict[str, str]:
    """Return the environment variables that the training process starts with."""
    level: Mapping[str, Any] = OmegaConf.to_container(config.determinism)  # type: ignore[assignment]
    return determinism.environment_variables(level, os.environ)


def claim(folder: Path, config: DictConfig) -> None:
    """Create the run folder and its config.yaml; a folder that holds a run is never taken.

    Of two runs that want one folder in the same instant one gets the lock and the other is
    refused. Whenever the process is killed, there is a whole config.yaml or none.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with record.lock(folder):
            if (folder / "config.yaml").exists():
                raise FileExistsError
            yaml = OmegaConf.to_yaml(config, resolve=True)
            record.write_atomically(folder / "config.yaml", yaml)
    except FileExistsError:
        raise InputError(
            f"hydra.run.dir: expected a folder without a run, got {folder}, which holds one; "
            "choose another, or go on with it by scripts/resume.py"
        ) from None
    except OSError as error:
        (folder / ".lock").unlink(missing_ok=True)
        raise InputError(
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{folder}; choose another, or free space"
        ) from None


def worker_command(config: DictConfig, folder: Path, request: str | None = None) -> list[str]:
    """Return the command that trains in a run folder; `request` is a `resume.Request` as text."""
    python = [sys.executable, "-m"]
    processes = config.trainer.processes
    if processes > 1:
        python += ["seedbed.torchrun", "--standalone", f"--nproc-per-node={processes}", "-m"]
    return [*python, "seedbed.worker", str(folder), *([request] if request else [])]


def run_worker(
    config: DictConfig, folder: Path, environment: Mapping[str, str], request: str | None = None
) -> int:
    """Run the training process to its end, passing signals on; return its exit status.

    It keeps our terminal, so that a `breakpoint()` in a model works, and our process group, so
    that Ctrl-C reaches it. A process killed by signal N gives 128 + N, as in a shell.
    """
    return run_passing_signals(worker_command(config, folder, request), environment)


def run_passing_signals(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run a command with SIGINT and SIGTERM passed on to it; return its exit status."""
    process: subprocess.Popen[bytes] | None = None
    pending: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    with _handlers(pass_on):
        process = subprocess.Popen(command, env=dict(environment))
        for number in pending:
            process.send_signal(number)
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def _handlers(handler: Any) -> Iterator[None]:
    """Handle SIGINT and SIGTERM for a while; threads other than the first cannot, and do not."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        before = [signal.signal(number, handler) for number in numbers]
    except ValueError:  # not the main thread: a launcher's
        yield
        return
    try:
        yield
    finally:
        for number, previous in zip(numbers, before, strict=True):
            signal.signal(number, previous)


def objective(folder: Path) -> float:
    """Return the metric that the run's `objective` names; NaN where there is none."""
    if not record.is_run(folder):
        return float("nan")
    value = record.read_summary(folder).get("objective", {}).get("value")
    return float("nan") if value is None else float(value)
