"""From a checked configuration to a training process: run folder, environment, signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import determinism, record, signals
from seedbed.errors import InputError
from seedbed.record import source

# A training process that finds these works with others; ours are told anew by our own torchrun.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


def start(config: DictConfig, folder: Path) -> int:
    """Make a run folder of an empty or new folder and train in it; return the exit status."""
    environment = training_environment(config)
    create_run_folder(folder, config)
    return run_worker(config, folder, environment)


def training_environment(config: DictConfig) -> dict[str, str]:
    """Return the environment variables that the training process starts with.

    It imports from this checkout wherever it is started, and not from the current folder, which
    may be somebody else's record.
    """
    preset: Mapping[str, Any] = OmegaConf.to_container(config.determinism)  # type: ignore[assignment]
    environment = determinism.environment_variables(preset, os.environ)
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    root = str(source.project_root())
    places += [] if root in places else [root]
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    busy = config.trainer.processes * (preset["threads"] or 1)
    if busy > (os.cpu_count() or 1):
        # Threads that wait for each other, spinning, hold the cores that the others need: a step
        # may take several times as long. It changes no bit.
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
    """Create the run folder and its config.yaml; a run, or a file of its name, is never replaced.

    Of two runs that want one folder in the same instant one gets the lock and the other is
    refused. Whenever the process is killed, there is a whole config.yaml or none.
    """
    held: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with record.lock(folder):
            held = [name for name in record.FILES if (folder / name).exists()]
            if held:
                raise FileExistsError
            yaml = OmegaConf.to_yaml(config, resolve=True)
            record.write_atomically(folder / "config.yaml", yaml)
    except FileExistsError as error:
        if not held:  # what is there is no folder
            raise InputError(
                f"hydra.run.dir: expected a folder, got {error.filename}, which is a file; choose "
                "another"
            ) from None
        raise InputError(
            f"hydra.run.dir: expected a folder without a run, got {folder}, which holds "
            f"{'one' if 'config.yaml' in held else held[0]}; choose another, or resume it by "
            "scripts/resume.py"
        ) from None
    except OSError as error:
        with suppress(OSError):
            (folder / ".lock").unlink()
        raise InputError(
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{folder}; choose another, or free space"
        ) from None


def worker_command(config: DictConfig, folder: Path, request: str | None = None) -> list[str]:
    """Return the command that trains in a run folder; `request` is a `resume.Request` as text."""
    python = [sys.executable, "-m"]
    processes = config.trainer.processes
    if processes > 1:
        python += [
            "seedbed.distributed.torchrun",
            "--standalone",
            f"--nproc-per-node={processes}",
            "-m",
        ]
    return [*python, "seedbed.worker", str(folder), *([request] if request else [])]


def run_worker(
    config: DictConfig, folder: Path, environment: Mapping[str, str], request: str | None = None
) -> int:
    """Run the training process to its end, passing signals on; return its exit status.

    It keeps our terminal, so that a `breakpoint()` in a model works, and our process group, so
    that Ctrl-C reaches it. A process killed by signal N gives 128 + N, as in a shell.
    """
    command = worker_command(config, folder, request)
    return run_passing_signals(command, alone(environment), signals.held())


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out what torchrun, or a cluster, told us of a place among other processes."""
    return {name: value for name, value in environment.items() if name not in _RANKS}


def run_passing_signals(
    command: Sequence[str],
    environment: Mapping[str, str],
    starting: AbstractContextManager[None] | None = None,
) -> int:
    """Run a command with stop signals passed on to it; return its exit status.

    Args:
        starting: the context that it is started in; `signals.held()` for a command that handles
            signals, but not in its first moments.
    """
    process: subprocess.Popen[bytes] | None = None
    pending: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    with _handlers(pass_on):
        with starting or nullcontext():
            process = subprocess.Popen(command, env=dict(environment))
        for number in pending:
            process.send_signal(number)
        status = process.wait()
    return status if status >= 0 else 128 - status


@contextmanager
def _handlers(handler: Any) -> Iterator[None]:
    """Handle stop signals for a while; threads other than the first cannot, and do not."""
    heeded = signals.heeded()
    try:
        before = [signal.signal(number, handler) for number in heeded]
    except ValueError:  # not the main thread: a launcher's
        yield
        return
    try:
        yield
    finally:
        for number, previous in zip(heeded, before, strict=True):
            signal.signal(number, previous)


def objective(folder: Path) -> float:
    """Return the metric that the run's `objective` names; NaN if it has none or did not finish."""
    if not record.is_run(folder):
        return float("nan")
    summary = record.read_summary(folder)
    if summary.get("status") != "finished":  # what it had reached is no result of the trial
        return float("nan")
    value = summary.get("objective", {}).get("value")
    return float("nan") if value is None else float(value)
