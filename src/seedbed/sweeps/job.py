"""One job of a sweep: started, or resumed where the sweep is resumed and the job has begun."""

import os
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from seedbed import launch, offline, record
from seedbed.errors import InputError
from seedbed.launch import resume
from seedbed.record import terminal
from seedbed.sweeps.plan import REFUSED
from seedbed.sweeps.resume_sweep import CHANGED, RESUME


def start(config: DictConfig, folder: Path) -> int:
    """Train in the folder of a job, in a process of its own; return the exit status.

    Raises:
        InputError: the run cannot be started, or not be resumed.
    """
    hydra = HydraConfig.get()
    if not hydra.launcher._target_.endswith(".BasicLauncher"):
        share_the_machine()
        os.environ[terminal.PREFIX] = f"{hydra.job.num}: "
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
