"""Two runs of different code are compared, each replayed with its own; the page shows what is said.

docs/debugging.md shows the commands and their output.
"""

import shlex
import subprocess
from pathlib import Path

import pytest

from tests import pages
from tests.running import QUICK, ROOT

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "debugging.md").read_text()
SECTION = PAGE.split("## Two versions of the code")[1].split("\n## ")[0]
FILE = "src/project/models/cnn.py"


def commands() -> list[str]:
    (block,) = pages.blocks(SECTION, "sh")
    return [line for line in block.splitlines() if line.startswith("python ")]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a clone with a run, and a run after the edit of the page was committed."""
    folder = pages.copy_project(tmp_path_factory.mktemp("versions") / "clone", {})
    pages.commit(folder, "The clone")
    first, second, _ = commands()
    run(folder, first, *QUICK)
    edit(folder, "nn.MaxPool2d(2)", "nn.AvgPool2d(2)")
    edit(folder, "        super().__init__()\n", "        super().__init__()  # as in the paper\n")
    pages.commit(folder, "Average")
    run(folder, second, *QUICK)
    return folder


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / FILE).read_text()
    assert text.count(old) == 1
    (folder / FILE).write_text(text.replace(old, new))


def run(folder: Path, line: str, *more: str, status: int = 0) -> "subprocess.CompletedProcess[str]":
    done = pages.run(folder, *shlex.split(line)[1:], *more)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_each_run_is_replayed_with_its_own_code(clone: Path) -> None:
    """The page's output, with the code that is here edited again: it has no part in the answer."""
    edit(clone, "nn.AvgPool2d(2)", "nn.LPPool2d(2, 2)")
    try:
        printed = run(clone, commands()[2], status=1).stdout
    finally:
        edit(clone, "nn.LPPool2d(2, 2)", "nn.AvgPool2d(2)")
    assert "MaxPool2d" in printed
    assert "AvgPool2d" in printed
    assert "LPPool" not in printed
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_a_run_of_older_code_is_verified_with_its_own_code(clone: Path) -> None:
    """verify says what to add; with it, the run is reproduced."""
    printed = run(clone, "python scripts/verify.py runs/before", status=1).stdout
    assert f"the code here is not that of the record ({FILE})" in printed
    assert "--restore-code" in printed
    printed = run(clone, "python scripts/verify.py runs/before --restore-code").stdout
    assert printed.startswith("REPRODUCED runs/before")
    assert "the code here" not in printed
