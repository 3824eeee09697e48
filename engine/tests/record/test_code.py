"""The code of two records is compared by digests and read from code.zip; nothing is executed."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from seedbed.record import Origin, archive, change, changes, code

A, B, C = (letter * 64 for letter in "abc")


def made_by(files: dict[str, str], commit: str | None = None, folder: Path | None = None) -> Origin:
    return Origin({}, {"imported_files": files, "git": {"commit": commit}}, folder)


def altering(before: Origin, now: Origin, same_settings: bool = False) -> list[str]:
    return [c.key for c in change.changes_of_code(before, now, same_settings) if c.alters_bits]


def test_imported_files_that_differ_can_alter_bits_and_nothing_else() -> None:
    """Another commit cannot; negative control: where the files are not known, it can."""
    files = {"a.py": A, "b.py": B}
    before, now = made_by(files, "1"), made_by({"a.py": A, "b.py": C}, "2")
    assert altering(before, now) == ["b.py"]
    assert change.same_code(before, made_by(files, "2"))
    assert altering(made_by({}, "1"), now) == ["git.commit"]


def test_a_file_of_one_run_alone_is_no_change_unless_the_settings_are_the_same() -> None:
    """Another model imports another file; a file that hides one of a package is a change."""
    before, now = made_by({"a.py": A}), made_by({"a.py": A, "numpy.py": B})
    assert altering(before, now) == []
    assert altering(before, made_by({"a.py": C, "numpy.py": B})) == ["a.py", "numpy.py"]
    origins = [replace(each, settings={"seed": 0}) for each in (before, now)]
    assert [each.key for each in changes(*origins)] == ["numpy.py"]


def test_a_kept_file_that_was_not_imported_is_none_that_is_new(tmp_path: Path) -> None:
    """A resumed process imports more of the engine; negative control: with another content."""
    (tmp_path / code.ARCHIVE).write_bytes(archive.zipped({"a.py": b"a", "b.py": b"b"}))
    files = {"a.py": code.sha256(b"a")}
    before = made_by(files, folder=tmp_path)
    for content, expected in ((b"b", []), (b"c", ["b.py"])):
        now = made_by({**files, "b.py": code.sha256(content)})
        assert altering(before, now, same_settings=True) == expected
    diff = [*code.diff(before, made_by({}), ["b.py", "c.py"])]
    assert diff[:2] == ["--- A/b.py", "+++ B/(none)"]


def test_what_a_stranger_says_of_code_is_taken_as_text() -> None:
    """Any JSON; names that lead out of the folder are left out."""
    evil = made_by({"../x": "1", "/y": "1", "z": 3}, "--output=x")  # type: ignore[dict-item]
    assert (evil.commit, evil.imported) == ("--output=x", {"z": "3"})
    for strange in ({}, {"git": 3, "imported_files": []}, {"git": {"commit": None}}):
        origin = Origin({}, strange)
        assert (origin.commit, origin.imported) == (None, {})


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    done = subprocess.run(
        ["git", "-C", str(root), *who, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_git_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a hook's variables name; a folder that no repository has is in none."""
    root, nothing = tmp_path / "repository", ({"commit": None, "dirty": None}, b"")
    for name in ("project", "ignored"):
        (root / name).mkdir(parents=True)
    git(root, "init", "-q")
    assert code.git_state(root) == nothing  # no commit
    (root / ".gitignore").write_text("ignored/\n")
    (root / "project" / "a.py").write_text("one\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another"))
    clean = {"commit": git(root, "--git-dir=.git", "rev-parse", "HEAD"), "dirty": False}
    assert code.git_state(root) == code.git_state(root / "project") == (clean, b"")
    assert code.git_state(root / "ignored") == nothing
    (root / "project" / "a.py").write_text("two\n")
    state, patch = code.git_state(root / "project")
    assert state == clean | {"dirty": True}
    assert b"-one\n+two\n" in patch
    monkeypatch.setenv("PATH", "")
    assert code.git_state(root) == nothing
