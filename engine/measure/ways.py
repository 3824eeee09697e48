"""Ways of training that must give the same bits; the rows of guarantees.py name them.

A way trains with overrides in a folder that does not exist yet, and returns the run folder.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from seedbed import project, record
from seedbed.errors import InputError

ROOT = project.root()


def finish(command: Sequence[str], **how: Any) -> None:
    """Run a command; raise InputError with its last line if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode:
        raise InputError((done.stderr.strip().splitlines() or ["no message"])[-1])


def command(folder: Path, overrides: Sequence[str]) -> list[str]:
    """Return the words of `python train.py`."""
    return [sys.executable, str(ROOT / "train.py"), *overrides, f"hydra.run.dir='{folder}'"]


def plainly(folder: Path, overrides: Sequence[str], **variables: str) -> Path:
    """Train with `python train.py`."""
    finish(command(folder, overrides), env={**os.environ, **variables})
    return folder


def elsewhere(folder: Path, overrides: Sequence[str]) -> Path:
    """Train into a folder with another kind of name, started from yet another folder."""
    folder.mkdir(parents=True)
    run = folder / "with a space, ünd more"
    finish(command(run, overrides), cwd=folder)
    return run


def beside_a_load(folder: Path, overrides: Sequence[str]) -> Path:
    """Train while every core has two other processes to serve."""
    words = [sys.executable, "-c", "while True: sum(i * i for i in range(10**5))"]
    busy = [subprocess.Popen(words) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        return plainly(folder, overrides)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def in_a_sweep(
    folder: Path, overrides: Sequence[str], seeds: str = "1,0", words: Sequence[str] = ()
) -> Path:
    """Train a sweep over seeds; return the run with seed 0."""
    train = [sys.executable, str(ROOT / "train.py"), "-m", f"seed={seeds}", *overrides, *words]
    finish([*train, f"hydra.sweep.dir={folder}"])
    runs = [path for path in folder.glob("*") if record.is_run(path)]
    [run] = [run for run in runs if record.read_summary(run)["seed"] == 0]
    return run


def interrupted(
    folder: Path,
    overrides: Sequence[str],
    number: signal.Signals = signal.SIGTERM,
    changed: Sequence[str] = (),
) -> Path:
    """Send a signal to a run soon after its first checkpoint, in step 7, then resume it."""
    words = command(folder, [*overrides, "trainer.checkpoint_every_steps=7"])
    # Of a session of its own, so that a signal reaches its training process and workers.
    process = subprocess.Popen(words, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    while process.poll() is None and not (folder / "checkpoints" / "last.pt").exists():
        time.sleep(0.002)
    if process.poll() is None:
        os.killpg(process.pid, number)
    process.wait()
    if record.read_summary(folder)["status"] == "finished":
        raise InputError("interruption: expected a run that was stopped, got one that finished")
    finish([sys.executable, str(ROOT / "scripts" / "resume.py"), str(folder), *changed])
    return folder
