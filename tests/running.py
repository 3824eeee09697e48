"""Running the real commands, as a person would, on a run that takes seconds."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from omegaconf import DictConfig

from seedbed.config import compose

ROOT = Path(__file__).resolve().parents[1]
# One thread, because tests share the machine; few steps, because bits show at once.
# `make test-avx2` takes instructions from the processor; a preset that sets these variables itself
# takes them from the configuration alone.
INSTRUCTIONS = tuple(
    f"++determinism.env.{name}={os.environ[name]}"
    for name in ("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA")
    if name in os.environ
)
QUICK = ("determinism.threads=1", "trainer.max_steps=12", "trainer.log_every_steps=1")


@cache
def composed(*overrides: str) -> DictConfig:
    """Return what train.py composes of overrides, once in this process: resolving it copies it."""
    return compose.compose(*overrides)


def command(
    *words: str, environment: dict[str, str] | None = None, timeout_seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a Python script of the project from its root, and return what came of it."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )


def train(
    folder: Path, *overrides: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python train.py` into a folder."""
    words = (f"hydra.run.dir={folder}", *INSTRUCTIONS, *overrides)
    return command("train.py", *words, environment=environment)


def trained(folder: Path, *overrides: str, environment: dict[str, str] | None = None) -> Path:
    """Run a quick training that must succeed; return its run folder."""
    done = train(folder, *QUICK, *overrides, environment=environment)
    assert done.returncode == 0, done.stderr
    return folder


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line with which a command refused: status 2, no traceback, nothing else."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: "), lines
    return lines[0].removeprefix("error: ")
