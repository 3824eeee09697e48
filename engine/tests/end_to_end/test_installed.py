"""The engine, installed by `pip install git+...`, imports fast and works in any
folder."""

import json
import os
import sys
from pathlib import Path

import pytest

from seedbed import project, record
from tests import pages, running
from tests.running import TEMPLATE

# pip builds the package with setuptools, which it fetches from the package registry.
NO_GIT = not (TEMPLATE / ".git").exists()
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(NO_GIT, reason="installs a commit of this checkout"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install engine and kernels of this commit from their git URL into an empty
    folder.

    torch and the other packages are those of this Python.
    """
    place = tmp_path_factory.mktemp("installed")
    url = f"git+file://localhost{TEMPLATE}"
    addresses = (
        f"torch-deterministic-kernels @ {url}#subdirectory=kernels",
        f"seedbed @ {url}#subdirectory=engine",
    )
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--quiet",
        "--no-input",
    )
    running.run(place, *pip, "install", "--no-deps", "--target", str(place), *addresses)
    return place


def run(site: Path, folder: Path, *words: str, status: int = 0) -> str:
    """Run Python in a folder, with the installed engine first on the path; return its
    stdout."""
    variables = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}
    del variables[project.PROJECT]  # that of the engine's tests
    command = (sys.executable, *words)
    return running.run(folder, *command, env=variables, status=status).stdout


def test_a_loop_is_recorded_and_compared_outside_the_repository(
    site: Path, tmp_path: Path
) -> None:
    """The plain loop of docs/own-loop.md repeats its bits, under a preset that is
    installed too. Negative control: another seed diverges."""
    script = pages.script(tmp_path, "plain")
    for name, seed in (("a", "0"), ("b", "0"), ("c", "1")):
        run(site, tmp_path, "-W", "ignore", script.name, name, seed)
    words = (str(site / "bin" / "seedbed"), "compare", "a")
    assert "The same bits at every step compared" in run(site, tmp_path, *words, "b")
    assert "diverge at step 1: sample ids" in run(site, tmp_path, *words, "c", status=1)
    environment = (tmp_path / "a" / "environment.json").read_text()
    assert "plain.py" in environment  # by content, as there is no repository
    assert (
        record.flatten(json.loads(environment))["flags.on_nondeterministic"] == "error"
    )


def test_the_import_loads_neither_torch_nor_numpy(site: Path, tmp_path: Path) -> None:
    """The import also starts no thread, and changes no variable and no signal
    handler."""
    code = """
import os, signal, sys, threading
def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    return dict(os.environ), threading.active_count(), handlers
before = state()
import seedbed
assert state() == before
assert not {"numpy", "torch"} & set(sys.modules)
assert seedbed.loading.seeded_loader and seedbed.Recorder and seedbed.apply_preset
"""
    run(site, tmp_path, "-c", code)
