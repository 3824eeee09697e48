"""Two runs of different code are compared, each replayed with its own; the page shows what is said.

docs/debugging.md shows the commands and their output.
"""

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import pages
from tests.end_to_end.test_readme import missing_lines
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
    (shown,) = pages.blocks(SECTION, "text")

    assert missing_lines(shown, printed) == []
    assert [line for line in shown.splitlines() if ".py:" in line and line not in printed] == []
    assert "LPPool" not in printed
    assert "memory" not in printed
    assert "seedbed-code" not in printed
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=clone, capture_output=True, text=True, check=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_without_being_asked_no_code_of_the_records_is_run(clone: Path) -> None:
    """The diff is shown from git's objects, the edited file is the only cause, and what to add."""
    line = commands()[2].replace(" --restore-code", "")
    printed = run(clone, line, status=1).stdout

    causes = printed.split("Likely causes, likeliest first\n")[1].split("\n\n")[0].splitlines()
    assert [row.split()[0] for row in causes[1:]] == [FILE]
    assert "-                nn.MaxPool2d(2),\n+                nn.AvgPool2d(2),\n" in printed
    assert "add --restore-code" in printed
    assert "replayed" not in printed
    assert "memory" not in printed


def test_what_git_does_not_have_is_said(clone: Path) -> None:
    """A record of a commit that nobody fetched: no diff, and what is missing."""
    copy = Path(shutil.copytree(clone / "runs" / "after", clone / "runs" / "foreign"))
    environment = (copy / "environment.json").read_text()
    (commit,) = re.findall(r'"commit": "(\w+)"', environment)
    (copy / "environment.json").write_text(environment.replace(commit, "0" * 40))
    line = "python scripts/compare.py runs/before runs/foreign --explain"
    printed = run(clone, line, status=1).stdout
    assert f"note: run B: git lacks commit {'0' * 40}" in printed
    done = run(clone, f"{line} --restore-code", status=2)
    assert done.stderr.startswith(f"error: commit {'0' * 40}: expected code that git can check out")
    assert done.stderr.count("\n") == 1


def test_a_run_of_older_code_is_verified_with_its_own_code(clone: Path) -> None:
    """verify says what to add; with it, the run is reproduced."""
    printed = run(clone, "python scripts/verify.py runs/before", status=1).stdout
    assert f"the code here is not that of the record ({FILE})" in printed
    assert "--restore-code" in printed
    printed = run(clone, "python scripts/verify.py runs/before --restore-code").stdout
    assert printed.startswith("REPRODUCED runs/before")
    assert "the code here" not in printed


def test_a_package_is_compared_with_a_run(clone: Path) -> None:
    """With the code that is in it; its temporary folder is not named."""
    run(clone, "python scripts/pack.py runs/before before.zip")
    line = "python scripts/compare.py before.zip runs/after --explain --restore-code"
    printed = run(clone, line, status=1).stdout
    assert "A before.zip: cnn mnist5k" in printed
    assert f"at {FILE}:52 in A, {FILE}:52 in B" in printed
    assert "- nn.MaxPool2d(2),\n    + nn.AvgPool2d(2)," in printed
    assert "seedbed-compare" not in printed
