"""`make new` leaves a project that lints, keeps the promise and trains, or changes nothing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running import ROOT, refusal

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        not (ROOT / "src/project").is_dir(), reason="this project has its name already"
    ),
]
IDENTITY = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a", "GIT_COMMITTER_NAME": "a"}
IDENTITY |= {"GIT_COMMITTER_EMAIL": "a", "GIT_CONFIG_GLOBAL": os.devnull}


def run(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a checkout, with its own code."""
    environment = {**os.environ, **IDENTITY, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    return subprocess.run(
        words, cwd=root, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def succeed(root: Path, *words: str) -> str:
    """Run a command that must succeed; return what it prints."""
    done = run(root, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a repository of this checkout's files as they are now."""
    root = tmp_path / "checkout"
    listed = run(ROOT, "git", "ls-files", "--cached", "--others", "--exclude-standard").stdout
    for name in listed.splitlines():
        if (ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, root / name)
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "as it is now")):
        succeed(root, "git", *words)
    return root


def test_the_project_is_renamed_everywhere_and_the_examples_are_out(checkout: Path) -> None:
    """Three steps of training; git takes all of it back."""
    succeed(checkout, sys.executable, "scripts/new.py", "waves")
    assert not (checkout / "src/project").exists()
    left = sorted(path.name for path in (checkout / "src/waves").rglob("[a-z]*.py"))
    assert left == ["dense.py", "points.py"]
    pattern = (
        r"\bproject\.(data|models)|src/project|\"project[\"/]|\[([a-z_.]+,)*project,(seedbed|torch)"
    )
    places = ("*.py", "*.yaml", "*.toml", ":!scripts/new.py", ":!tests/end_to_end/test_new.py")
    assert run(checkout, "git", "grep", "-lE", pattern, "--", *places).stdout == ""
    words = ("determinism.threads=1", "trainer.max_steps=3", "hydra.run.dir=runs/a")
    succeed(checkout, sys.executable, "train.py", *words)
    assert "_target_: waves.data.points.Points" in (checkout / "runs/a/config.yaml").read_text()
    succeed(checkout, "git", "reset", "-q", "--hard")
    assert succeed(checkout, "git", "status", "--porcelain") == ""


def test_a_later_change_of_the_engine_merges(checkout: Path) -> None:
    """Into a project with a model of its own; negative control: both changed one line."""
    succeed(checkout, "git", "branch", "engine")
    succeed(checkout, sys.executable, "scripts/new.py", "waves")
    (checkout / "src/waves/models/mine.py").write_text('"""Mine."""\n')
    replace(checkout / "configs/config.yaml", "seed: 0 ", "seed: 7 ")
    succeed(checkout, "git", "add", "-A")
    succeed(checkout, "git", "commit", "-qm", "my project")
    succeed(checkout, "git", "checkout", "-q", "engine")
    replace(checkout / "engine/src/seedbed/data/source.py", '"""Load a batch."""', '"""Load it."""')
    replace(checkout / "configs/trainer/default.yaml", "max_epochs: 16", "max_epochs: 17")
    replace(checkout / "configs/config.yaml", "schedule: onecycle", "schedule: cosine")
    succeed(checkout, "git", "commit", "-qam", "change the engine")
    succeed(checkout, "git", "checkout", "-q", "-")
    succeed(checkout, "git", "merge", "-q", "--no-edit", "engine")
    merged = (checkout / "configs/config.yaml").read_text()
    assert "seed: 7 " in merged
    assert "schedule: cosine" in merged
    assert not (checkout / "src/project").exists()
    replace(checkout / "configs/config.yaml", "seed: 7 ", "seed: 8 ")
    succeed(checkout, "git", "commit", "-qam", "mine")
    succeed(checkout, "git", "checkout", "-q", "engine")
    replace(checkout / "configs/config.yaml", "seed: 0 ", "seed: 1 ")
    succeed(checkout, "git", "commit", "-qam", "theirs")
    succeed(checkout, "git", "checkout", "-q", "-")
    assert "CONFLICT" in run(checkout, "git", "merge", "-q", "engine").stdout


def replace(path: Path, before: str, after: str) -> None:
    """Change a file where it says something once."""
    text = path.read_text()
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, after))


@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_a_new_project_lints_and_keeps_the_promise(checkout: Path, keep: list[str]) -> None:
    """With the examples and without."""
    succeed(checkout, sys.executable, "scripts/new.py", "waves", *keep)
    for tool in (["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]):
        succeed(checkout, sys.executable, "-m", *tool)
    tests = ("tests/project/test_promise.py", "tests/test_rooms.py")
    succeed(checkout, sys.executable, "-m", "pytest", "-q", *tests)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", "NAME: expected a package's name"),
        ("Waves", "NAME: expected a package's name"),
        ("my-waves", "NAME: expected a package's name"),
        ("class", "NAME: expected a package's name"),
        ("json", "NAME: expected a new name, got json"),
        ("seedbed", "NAME: expected a new name, got seedbed"),
        ("tests", "NAME: expected a new name, got tests"),
    ],
)
def test_a_name_that_cannot_be_is_refused(checkout: Path, name: str, expected: str) -> None:
    """In one line, and nothing is changed."""
    assert refusal(run(checkout, sys.executable, "scripts/new.py", name)).startswith(expected)
    assert run(checkout, "git", "status", "--porcelain").stdout == ""


def test_uncommitted_changes_are_refused(checkout: Path) -> None:
    """git could not take back what would be lost among them."""
    (checkout / "notes.txt").write_text("mine")
    said = refusal(run(checkout, sys.executable, "scripts/new.py", "waves"))
    assert said.startswith("checkout: expected no uncommitted changes")
    assert (checkout / "src/project").is_dir()
