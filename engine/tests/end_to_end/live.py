"""Helpers that start runs, watch them while they train, interrupt and resume them."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from seedbed import record
from tests.running import ROOT, command

SHORT = (
    "determinism.threads=1",
    "trainer.max_steps=40",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=2",
)
ADDING = ("experiment=adding_lstm", "data.length=20", "data.train.samples=1024")
# Validations after 16 and 32 of 40 steps; an evaluation has 40 batches, enough to
# interrupt it.
LSTM = (
    *SHORT,
    *ADDING,
    "data.persistent_workers=false",
    "data.validation.samples=400",
    "data.test.samples=400",
    "data.eval_batch_size=10",
    "trainer.shards=4",
)
TIMEOUT = 120


def started(folder: Path, *overrides: str, **how: Any) -> subprocess.Popen[str]:
    """Start a run, or resume it if it has a config.yaml, in a new process group."""
    anew = ["train.py", f"hydra.run.dir={folder}", *LSTM]
    words = (
        ["-m", "seedbed", "resume", str(folder)]
        if (folder / "config.yaml").exists()
        else anew
    )
    return begin(*words, *overrides, **how)


def begin(*words: str, **how: Any) -> subprocess.Popen[str]:
    """Start Python in the project of the tests, in a new process group."""
    how = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "start_new_session": True,
    } | how
    return subprocess.Popen(
        [sys.executable, *words], text=True, **({"cwd": ROOT} | how)
    )


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until a condition holds; fail after TIMEOUT seconds or if the process
    ends."""
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it never was so"
        time.sleep(0.002)


def rows(folder: Path, phase: str = "train") -> int:
    table = folder / "metrics.csv"
    return table.read_text().count(f",{phase},") if table.exists() else 0


def interrupted(
    process: subprocess.Popen[str], number: signal.Signals, folder: Path
) -> str:
    """Interrupt a run by a signal; check status, empty stderr and record; return its
    stdout."""
    process.send_signal(number)
    out, errors = process.communicate(timeout=TIMEOUT)
    assert (process.returncode, errors) == (128 + number, "")
    assert record.read_summary(folder)["status"] == "interrupted"
    return out


def resumed(folder: Path, *overrides: str) -> str:
    done = command("scripts/resume.py", str(folder), *overrides)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def processes(*, parent: int = 0, group: int = 0) -> list[int]:
    """Return the ids of a process's children, of a group's members or of all processes,
    sorted.

    Children that are ranks are thus in order. Zombies are left out.
    """
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, *of = path.read_text().rpartition(")")[2].split()[:3]
            if state != "Z" and (parent or int(of[0]), group or int(of[1])) == tuple(
                map(int, of)
            ):
                found.append(int(path.parent.name))
    return sorted(found)
