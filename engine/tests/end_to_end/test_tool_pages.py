"""docs/tools.md and docs/sweeps.md: every command of the pages runs, in their order."""

import re
import shlex
from pathlib import Path

import pytest
import torch

from tests import pages
from tests.running import QUICK, ROOT

pytestmark = pytest.mark.long

# Launchers and the search need packages of their own: make test-cluster. A shell completes words.
ELSEWHERE = ("submitit", "ray", "optuna", ".venv-cluster", "--shell-completion", "launcher.gpus")
# Commands that end otherwise, and a word: a condition that no run of a few steps fulfils, data that
# nobody has here, and a package that is only looked into.
OTHERWISE = {
    r"test_accuracy>0\.9": (1, "no run"),
    r"/shared/mnist": (2, "data.root"),
    r"verify\.py paper\.zip$": (2, "nothing was executed"),
}


def commands(page: str) -> list[list[str]]:
    """Return the words of each command that runs here."""
    text = (ROOT / "docs" / page).read_text()
    lines = [line for block in pages.blocks(text, "bash") for line in block.splitlines()]
    here = [line for line in lines if not any(word in line for word in ELSEWHERE)]
    return [shlex.split(line, comments=True)[1:] for line in here if line.startswith("python ")]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with the run and the sweep that the pages take for granted."""
    root = pages.copy_project(tmp_path_factory.mktemp("project"), {})
    pages.commit(root, "The clone")
    for words in (
        ["train.py", "hydra.run.dir=runs/a"],
        ["train.py", "-m", "seed=0,1,2", "hydra.sweep.dir=sweeps/b", "optimizer.lr=0.01"],
    ):
        check(root, words)
    return root


def check(project: Path, words: list[str]) -> None:
    """Run a command of a page, with few steps if it trains."""
    few = QUICK if words[0] == "train.py" else ()
    done = pages.run(project, *words, *few)
    line = " ".join(words)
    found = [ending for pattern, ending in OTHERWISE.items() if re.search(pattern, line)]
    status, about = found[0] if found else (0, "")
    assert done.returncode == status, (words, done.stdout[-500:], done.stderr[-500:])
    assert about in done.stdout + done.stderr


def test_the_commands_on_sweeps_run(project: Path) -> None:
    assert len(commands("sweeps.md")) >= 6
    for words in commands("sweeps.md"):
        check(project, words)


def test_the_commands_on_finished_runs_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exported model gives outputs by the lines that the page shows."""
    if not (project / "sweeps/a").exists():
        check(project, ["train.py", "-m", "seed=0,1,2", "hydra.sweep.dir=sweeps/a"])
    assert len(commands("tools.md")) >= 11
    for words in commands("tools.md"):
        check(project, words)
    monkeypatch.chdir(project)
    (load,) = pages.blocks((ROOT / "docs" / "tools.md").read_text(), "python")
    known = {"inputs": torch.zeros(2, 1, 28, 28)}
    exec(load, known)
    assert known["outputs"].shape == (2, 10)
