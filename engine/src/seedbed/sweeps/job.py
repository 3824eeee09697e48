"""One job of a sweep: started, or resumed where the sweep is resumed and the job has begun."""

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seedbed import launch, offline, record, signals
from seedbed.errors import InputError
from seedbed.launch import resume
from seedbed.record import terminal
from seedbed.sweeps.plan import REFUSED
from seedbed.sweeps.resume_sweep import CHANGED, RESUME

_SWEEP = "SEEDBED_SWEEP"  # id of the sweep's process; joblib runs one job at a time in it


def start(config: DictConfig, folder: Path) -> int:
    """Train in the folder of a job, in a process of its own; return the exit status.

    Raises:
        InputError: the run cannot be started, or not be resumed.
    """
    hydra = HydraConfig.get()
    if hydra.launcher._target_.endswith(".BasicLauncher"):
        return _start(config, folder)
    share_the_machine()
    os.environ[terminal.PREFIX] = f"{hydra.job.num}: "
    sweep = os.getppid()
    in_the_sweep = os.environ.get(_SWEEP) == str(os.getpid())
    status = _start(config, folder)
    if status in signals.INTERRUPTED:
        time.sleep(1)  # who stopped this job may be the sweep, on its way out
    if not in_the_sweep and os.getppid() != sweep:
        os._exit(status)  # nobody waits for the result, or has other jobs
    return status


def _start(config: DictConfig, folder: Path) -> int:
    """Start or resume the training process of a job; return its exit status."""
    hydra = HydraConfig.get()
    resuming = hydra.job.env_set.get(RESUME)
    (folder / REFUSED).unlink(missing_ok=True)
    if resuming is None or not (folder / "config.yaml").exists():
        return launch.start(config, folder)
    if is_finished(folder):
        return 0
    # Composed here: whoever resumes the sweep has typed an override that sets it.
    trust = tuple(config.trusted_packages)
    online = not offline.is_asked_for()
    return resume.resume_run(folder, (), resuming == CHANGED, trust, online)


def stop_with_the_sweep(folder: Path) -> None:
    """Have jobs that run side by side stopped, each with a checkpoint, when this process is.

    Not on Ctrl-C, which reaches all processes of a terminal.
    """
    os.environ[_SWEEP] = str(os.getpid())
    for number in {signal.SIGTERM, signal.SIGHUP}.intersection(signals.heeded()):
        signal.signal(number, partial(_stop_jobs, folder))


def _stop_jobs(folder: Path, number: int, _frame: object) -> None:
    """Pass a signal on to the processes of a launcher, and end by it."""
    text = f"interrupted\nresume it: {terminal.resume_command(folder)}\n"
    with suppress(OSError):  # print could be interrupted in another print
        os.write(1, text.encode())
    for process in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(signal.Signals(number))


def note_refusal(folder: Path, error: InputError) -> None:
    """Leave the reason why a job was refused in its folder, for the report on the sweep."""
    if not (folder / "config.yaml").exists():  # it may be the folder of another run
        with suppress(OSError):
            record.write_atomically(folder / REFUSED, f"{error}\n")


def share_the_machine() -> None:
    """Let jobs that run side by side leave each other the terminal and the cores.

    Threads that wait for each other do so asleep; it changes how long a step takes, and no bit.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def is_finished(folder: Path) -> bool:
    """Return whether a job's run has finished."""
    path = folder / "summary.json"
    return path.exists() and record.read_summary(folder).get("status") == "finished"
