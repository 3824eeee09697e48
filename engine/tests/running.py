"""Running the real commands, as a person would, on a run that takes seconds.

Nearly all are forks (tests/forks.py). Five keep the true command, in an interpreter of its own:

- end_to_end/test_train.py: a training has the bits and the record of a fork's;
- end_to_end/test_lifecycle.py: Ctrl-C at start-up, a full disk;
- worker/test_environment.py: what code.zip holds imports as it did, from a shell.
"""

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
from seedbed.errors import exit_status
from tests import tiny

ENGINE = Path(__file__).resolve().parents[1]
TEMPLATE = ENGINE.parent
# The project that tests train; the template is the subject of those that name TEMPLATE.
ROOT = ENGINE / "tests" / "tiny"
# One thread, because tests share the machine; few steps, because bits show at once.
QUICK = ("determinism.threads=1", "trainer.max_steps=12", "trainer.log_every_steps=1")


@cache
def composed(*overrides: str) -> DictConfig:
    """Return what train.py composes of overrides, once in this process: resolving it copies it."""
    return compose.compose(*overrides)


def typed(**sections: Any) -> Settings:
    """Return settings for code that is called directly: other keys of some sections.

    Classes that users choose come with all of their arguments.
    """
    whole: Any = OmegaConf.to_container(config.resolve(composed(*tiny.OVERRIDES)))
    for name, value in sections.items():
        kept = whole.get(name) if isinstance(value, Mapping) and "_target_" not in value else None
        whole[name] = {**kept, **value} if kept else value
    return config.check(OmegaConf.create(whole))


def run(
    folder: Path, *words: str, status: int | None = 0, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, as `subprocess.run` does, to an exit status; None: any."""
    how = {"capture_output": True, "text": True, "timeout": 900, **how}
    done = subprocess.run(words, cwd=folder, **how)
    assert status in (None, done.returncode), (words, done.stdout[-3000:], done.stderr[-3000:])
    return done


def command(
    *words: str, environment: dict[str, str] | None = None, timeout_seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run Python in the project of the tests, and return what came of it."""
    variables = {**os.environ, **(environment or {})}
    if words[0].startswith("scripts/"):  # the template's are these commands
        words = ("-m", "seedbed", Path(words[0]).stem, *words[1:])
    if variables.get("PYTHONPATH") and str(ENGINE) not in variables["PYTHONPATH"]:
        variables["PYTHONPATH"] += f"{os.pathsep}{ENGINE}"  # tests.* in other processes
    how: Any = {"env": variables, "timeout": timeout_seconds}
    return run(ROOT, sys.executable, *words, status=None, **how)


def printed(
    *words: str, environment: Mapping[str, str] | None = None, prefix: Sequence[str] = ()
) -> list[str]:
    """Run Python under these variables alone, which must succeed; return the lines it prints."""
    return run(ROOT, *prefix, sys.executable, *words, env=environment).stdout.splitlines()


def called(main: Callable[[], int], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script's `main` with a command line in this process, and return what came of it."""
    out, err = io.StringIO(), io.StringIO()
    argv = patch.object(sys, "argv", [main.__code__.co_filename, *words])
    with argv, redirect_stdout(out), redirect_stderr(err):
        try:
            status = exit_status(main)
        except SystemExit as stop:  # Hydra's
            status = int(stop.code or 0)
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def train(
    folder: Path, *overrides: str, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `python train.py` into a folder."""
    words = (f"hydra.run.dir={folder}", *overrides)
    return command("train.py", *words, environment=environment)


def trained(folder: Path, *overrides: str, environment: dict[str, str] | None = None) -> Path:
    """Run a quick training that must succeed; return its run folder."""
    done = train(folder, *QUICK, *overrides, environment=environment)
    assert done.returncode == 0, done.stderr
    return folder


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled, in whichever process of the session asked first.

    Who asks meanwhile waits. If `make` fails, the next one tries again. Tests only read the
    folder, below the fixture `shared`: it is the same one for all.
    """
    made = folder.with_name(f"{folder.name}.made")
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line with which a command refused: status 2, no traceback, nothing else."""
    assert done.returncode == 2, (done.returncode, done.stdout, done.stderr)
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: "), lines
    return lines[0].removeprefix("error: ")
