"""Runs of two code versions are compared and replayed, each with its own code, without
git."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.record import code
from tests import pages, running
from tests.running import QUICK

pytestmark = pytest.mark.long

FILE = "src/project/models/cnn.py"
COMPARE = ("scripts/compare.py", "runs/before", "runs/after", "--explain")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with a run, a run after an edit, and one more edit.

    The surrounding git repository ignores all files; the model imports a module from
    PYTHONPATH.
    """
    outer = tmp_path_factory.mktemp("versions")
    running.run(outer, "git", "init", "--quiet")
    (outer / ".gitignore").write_text("*\n")
    folder = pages.copy_project(outer / "clone", {})
    (outer / "lib").mkdir()
    (outer / "lib" / "factor.py").write_text("FACTOR = 1.0\n")
    edit(
        folder, "\nfrom torch import", "\nfrom factor import FACTOR\nfrom torch import"
    )
    edit(folder, "super().__init__()\n", "super().__init__()\n        assert FACTOR\n")
    run(folder, "train.py", "hydra.run.dir=runs/before", *QUICK)
    edit(folder, "nn.MaxPool2d(2)", "nn.AvgPool2d(2)")
    run(folder, "train.py", "hydra.run.dir=runs/after", *QUICK)
    # The present code must not affect any result.
    (outer / "lib" / "factor.py").unlink()
    edit(folder, "nn.AvgPool2d(2)", "nn.LPPool2d(2, 2)")
    return folder


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / FILE).read_text()
    assert text.count(old) == 1
    (folder / FILE).write_text(text.replace(old, new))


def run(folder: Path, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'src'}:{folder}:{folder.parent / 'lib'}"
    return running.run(
        folder, "env", f"PYTHONPATH={path}", sys.executable, *words, status=status
    )


def test_each_run_is_replayed_with_its_own_code(clone: Path) -> None:
    """The first different operation is named with its line in both, and no temporary
    folder."""
    printed = run(clone, *COMPARE, "--restore-code", status=1).stdout
    assert "max_pool2d" in printed
    assert f"at {FILE}:" in printed
    assert (
        "-                nn.MaxPool2d(2),\n+                nn.AvgPool2d(2),\n"
        in printed
    )
    assert "LPPool" not in printed
    assert "seedbed-code" not in printed


def test_without_being_asked_no_code_of_the_records_is_run(clone: Path) -> None:
    """The diff is made from the two code.zip files, and has only the changed line."""
    printed = run(clone, *COMPARE, status=1).stdout
    lines = printed.split("What differs in the files that the runs imported\n")[
        1
    ].splitlines()
    changed = [
        line[1:].strip() for line in lines if line[:1] in "+-" and line[1:2] == " "
    ]
    assert changed == ["nn.MaxPool2d(2),", "nn.AvgPool2d(2),"]
    assert "add --restore-code" in printed
    assert "replayed" not in printed


def test_a_run_of_older_code_is_verified_with_its_own_code(
    clone: Path, tmp_path: Path
) -> None:
    """From its folder or a zip of it elsewhere. Negative control: present code cannot
    replay it."""
    done = run(clone, "scripts/verify.py", "runs/before", status=2)
    assert "--restore-code" in done.stderr
    printed = run(clone, "scripts/verify.py", "runs/before", "--restore-code").stdout
    assert printed.startswith("REPRODUCED runs/before")
    path = shutil.make_archive(
        str(tmp_path / "before"), "zip", clone / "runs", "before"
    )
    printed = run(clone, "scripts/verify.py", path, "--restore-code").stdout
    assert printed.startswith(f"REPRODUCED {path}")
    assert "seedbed-run" not in printed
    printed = run(clone, "scripts/compare.py", path, "runs/before").stdout
    assert "The same bits at every step compared (12)" in printed


def test_code_that_is_missing_is_refused(clone: Path, tmp_path: Path) -> None:
    """In one line; hostile code: tests/record/test_archive.py. Negative control: tests
    above."""
    folder = Path(shutil.copytree(clone / "runs" / "before", tmp_path / "run"))
    (folder / code.ARCHIVE).unlink()
    done = run(clone, "scripts/verify.py", str(folder), "--restore-code", status=2)
    assert code.ARCHIVE in running.refusal(done)
    done = run(
        clone, "scripts/compare.py", str(folder), "runs/after", "--explain", status=1
    )
    assert f"note: run A keeps no code ({code.ARCHIVE})" in done.stdout
