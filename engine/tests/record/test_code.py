"""The code of two records is compared, and read, without checking any of it out."""

import subprocess
from pathlib import Path

import pytest

from seedbed import project
from seedbed.record import blobs, code, source
from seedbed.record.change import Change
from seedbed.record.code import Code

IMPORTED = {"src/a.py": "11", "src/b.py": "22"}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a repository with two commits, which is the project for a while."""
    root = tmp_path / "repository"
    (root / "src").mkdir(parents=True)
    monkeypatch.setattr(project, "root", lambda: root)
    git(root, "init", "-q")
    for text in ("one\n", "two\n"):
        (root / "src" / "a.py").write_text(text)
        (root / "src" / "same.py").write_text("same\n")
        git(root, "add", ".")
        git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", text)
    return root


def git(root: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def recorded(root: Path) -> tuple[Code, bytes]:
    state, patch = source.snapshot(root)
    return Code.of({"git": state}, blobs.patched_files(patch)), patch


def altering(before: Code, now: Code) -> list[str]:
    return [change.key for change in code.changes(before, now) if change.alters_bits]


def test_files_of_two_commits_and_patches_are_compared(repository: Path) -> None:
    """Also of a commit that is not checked out; negative control: the same code."""
    now, _ = recorded(repository)
    before = Code(git(repository, "rev-parse", "HEAD~1"), {}, {})
    assert altering(before, now) == ["src/a.py"]
    assert altering(now, now) == []
    (repository / "src" / "a.py").write_text("one\n")
    patched, _ = recorded(repository)
    assert altering(before, patched) == []  # another way to the same content
    (repository / "src" / "new.py").write_text("new\n")
    assert altering(before, recorded(repository)[0]) == ["src/new.py"]


def test_only_what_either_imported_can_alter_bits() -> None:
    """Of commits that git does not have, too; control: without the list, any file could be."""
    commits = ("1" * 40, "2" * 40)
    before = Code(commits[0], {"src/c.py": "33"}, {}, IMPORTED)
    now = Code(commits[1], {"src/c.py": "44"}, {}, {**IMPORTED, "src/b.py": "23"})

    assert altering(before, now) == ["src/b.py"]
    assert not code.is_same(before, now)
    assert code.is_same(before, Code(commits[1], {"src/c.py": "44"}, {}, IMPORTED))
    unknown = [Code(c, {"src/c.py": blob}, {}) for c, blob in zip(commits, "34", strict=True)]
    assert altering(*unknown) == ["git.commit", "src/c.py"]


def test_what_a_stranger_says_of_code_is_taken_as_text() -> None:
    """Any JSON; paths that lead out of the checkout are left out, revisions are no commits."""
    evil = {"git": {"commit": "--output=x", "lacks": {"a": 1}}, "imported_files": {"../x": "1"}}
    assert Code.of(evil, {}) == Code("--output=x", {}, {"a": "1"}, {})
    for strange in ({}, {"git": 3, "imported_files": []}, {"git": {"lacks": "x"}}):
        assert Code.of(strange, {}) == Code(None, {}, {})
    assert code.texts(Code("--output=x", {}, {}), b"", ["a"]) is None
    assert code.texts(Code("HEAD", {}, {}), b"", ["a"]) is None
    assert [*code.changes(Code("HEAD", {}, {}), Code(None, {}, {}))] == [
        Change("git.commit", "HEAD", None, kind="code")
    ]


def test_texts_are_read_from_commit_and_patch(repository: Path) -> None:
    """Changed, new, deleted and untouched files; the repository and its index stay as they are."""
    (repository / "src" / "a.py").write_text("three\n")
    (repository / "src" / "new.py").write_text("new\n")
    (repository / "src" / "same.py").unlink()
    held, patch = recorded(repository)
    before = git(repository, "status", "--porcelain"), sorted(repository.rglob("*"))
    paths = ["src/a.py", "src/new.py", "src/same.py"]

    assert code.texts(held, patch, paths) == {"src/a.py": b"three\n", "src/new.py": b"new\n"}
    assert code.texts(held, b"", paths) == {"src/a.py": b"two\n", "src/same.py": b"same\n"}
    assert (git(repository, "status", "--porcelain"), sorted(repository.rglob("*"))) == before
    assert code.texts(Code("0" * 40, {}, {}), b"", paths) is None
    other = Code(git(repository, "rev-parse", "HEAD~1"), {}, {})
    assert code.texts(other, patch, paths) is None  # it does not fit


def test_texts_of_a_project_in_a_folder_of_a_repository(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of records begin at the project's root."""
    monkeypatch.setattr(project, "root", lambda: repository / "src")
    (repository / "src" / "a.py").write_text("three\n")
    held, patch = recorded(repository / "src")

    assert code.texts(held, patch, ["a.py", "same.py"]) == {
        "a.py": b"three\n",
        "same.py": b"same\n",
    }


def test_files_that_are_others_here_are_named(repository: Path) -> None:
    """By what this checkout holds now."""
    commit = git(repository, "rev-parse", "HEAD")
    held = {"src/a.py": b"two\n", "src/same.py": b"x"}
    blobs = {path: code.blob_id(text, commit) for path, text in held.items()}
    assert code.changed_here(Code(commit, {}, {}, blobs)) == ["src/same.py"]
    assert git(repository, "rev-parse", "HEAD:src/a.py") == blobs["src/a.py"]
