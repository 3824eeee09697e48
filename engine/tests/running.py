"""Running the real commands, as a user would, on a run that takes seconds."""

import fcntl
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf

from seedbed import config
from seedbed.config import Settings, compose
from seedbed.errors import exit_on_errors
from tests import tiny

ENGINE = Path(__file__).resolve().parents[1]
TEMPLATE = ENGINE.parent
# The project that tests train; the template is the subject of those that name TEMPLATE.
ROOT = ENGINE / "tests" / "tiny"
# One thread, because tests share the machine; few steps, because bits show at once.
QUICK = ("determinism.threads=1", "trainer.max_steps=12", "trainer.log_every_steps=1")


@cache
def composed(*overrides: str) -> DictConfig:
    """Return the configuration that train.py composes, cached: resolving it makes a
    copy."""
    return compose.compose(*overrides)


def typed(**sections: Any) -> Settings:
    """Return settings for code that is called directly, with some keys of sections
    replaced.

    A section with a `_target_` replaces the present one; others are merged into it.
    """
    whole: Any = OmegaConf.to_container(config.resolve(composed(*tiny.OVERRIDES)))
    for name, value in sections.items():
        kept = (
            whole.get(name)
            if isinstance(value, Mapping) and "_target_" not in value
            else None
        )
        whole[name] = {**kept, **value} if kept else value
    return config.check(OmegaConf.create(whole))


def run(
    folder: Path, *words: str, status: int | None = 0, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder by `subprocess.run`; assert its exit status (None:
    any)."""
    how = {"capture_output": True, "text": True, "timeout": 900, **how}
    done = subprocess.run(words, cwd=folder, **how)
    assert status in (None, done.returncode), (
        words,
        done.stdout[-3000:],
        done.stderr[-3000:],
    )
    # 1: a difference
    assert status != 1 or "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def command(
    *words: str, environment: dict[str, str] | None = None, timeout_seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run Python in the tests' project; return the completed process."""
    variables = {**os.environ, **(environment or {})}
    if words[0].startswith("scripts/"):  # the template's scripts are these commands
        words = ("-m", "seedbed", Path(words[0]).stem, *words[1:])
    if variables.get("PYTHONPATH") and str(ENGINE) not in variables["PYTHONPATH"]:
        # so that other processes import tests.*
        variables["PYTHONPATH"] += f"{os.pathsep}{ENGINE}"
    how: Any = {"env": variables, "timeout": timeout_seconds}
    return run(ROOT, sys.executable, *words, status=None, **how)


def printed(
    *words: str,
    environment: Mapping[str, str] | None = None,
    prefix: Sequence[str] = (),
) -> list[str]:
    """Run Python with only these variables, if given; assert success; return output
    lines."""
    return run(
        ROOT, *prefix, sys.executable, *words, env=environment
    ).stdout.splitlines()


def called(main: Callable[[], int], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script's `main` with a command line in this process; return a completed
    process."""
    out = io.StringIO()
    err = io.StringIO()
    argv = patch.object(sys, "argv", [main.__code__.co_filename, *words])
    with argv, redirect_stdout(out), redirect_stderr(err):
        try:
            with exit_on_errors():
                status = main()
        except SystemExit as stop:  # also Hydra's
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def train(
    folder: Path, *overrides: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python train.py` with a folder as its run folder."""
    words = (f"hydra.run.dir={folder}", *overrides)
    return command("train.py", *words, environment=environment)


def trained(
    folder: Path, *overrides: str, environment: dict[str, str] | None = None
) -> Path:
    """Run a quick training that must succeed; return its run folder."""
    done = train(folder, *QUICK, *overrides, environment=environment)
    assert done.returncode == 0, done.stderr
    return folder


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills once, in the first process of the session that
    needs it.

    Other processes wait meanwhile; if `make` fails, the next one tries again. The
    folder is below the fixture `shared`, and tests must only read it, because all share
    it.
    """
    made = folder.with_name(f"{folder.name}.made")
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a failed attempt
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of an invalid request: status 2, one line on stderr, no
    traceback."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: "), lines
    return lines[0].removeprefix("error: ")
