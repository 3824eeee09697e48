"""Zip files may hold only plain files inside a folder; recorded code is compared by
digests."""

import io
import os
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import Origin, change, changes, code, untrusted
from tests.running import run

FILES = {"src/a.py": b"A = 1\n", "PYTHONPATH": b"src\n"}


def holding(*entries: tuple[str, bytes], mode: int = 0o100644, kind: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.create_system = 3
            info.external_attr = mode << 16
            info.compress_type = kind
            made.writestr(info, content)
    return buffer.getvalue()


def many() -> bytes:
    return untrusted.zipped({f"{number:06}.py": b"" for number in range(100_000)})


# The last claims to have one entry; a flag marks that of "an encrypted entry" as
# encrypted.
ENTRY = b"PK\1\2\x14\3\x14\0\0"
HOSTILE: dict[str, Callable[[], bytes]] = {
    "an absolute path": lambda: holding(("/tmp/x", b"")),
    "a way out": lambda: holding(("../x.py", b"")),
    "a backslash": lambda: holding(("..\\x.py", b"")),
    "a control character": lambda: holding(("a\x1b[2J.py", b"")),
    "a link": lambda: holding(("src", b"/tmp"), mode=0o120777),
    "twice": lambda: holding(("ab.py", b""), ("aa.py", b"")).replace(b"aa", b"ab"),
    "a file as a folder": lambda: untrusted.zipped({"a": b"", "a/b": b""}),
    "a bomb": lambda: holding(("a.py", bytes(20 << 20)), kind=zipfile.ZIP_DEFLATED),
    "another compression": lambda: holding(("a.py", b"x"), kind=zipfile.ZIP_LZMA),
    "much": lambda: untrusted.zipped(dict.fromkeys("abcde", bytes(15 << 20))),
    "a comment": lambda: untrusted.zipped(FILES)[:-2] + b"\1\0x",
    "cut off": lambda: untrusted.zipped(FILES)[:-9],
    "damaged content": lambda: untrusted.zipped(FILES).replace(b"A = 1", b"A = 2"),
    "damaged compression": (
        lambda: holding(("a", b"x"), kind=8).replace(b"a\xab", b"a\xff")
    ),
    "an encrypted entry": (
        lambda: untrusted.zipped(FILES).replace(ENTRY, ENTRY[:-1] + b"\1")
    ),
    "bytes before it": lambda: b"#!/bin/sh\n" + untrusted.zipped(FILES),
    "two archives": lambda: 2 * untrusted.zipped(FILES),
    "100,000 entries": many,
    "more than it says": lambda: many()[:-14] + struct.pack("<2H", 1, 1) + many()[-10:],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_plain_file_inside_is_refused(kind: str, tmp_path: Path) -> None:
    """The error is one line, within 1 s; no file lands outside. Negative control: the
    next test."""
    (tmp_path / "code.zip").write_bytes(HOSTILE[kind]())
    (tmp_path / "in").mkdir()
    since = time.process_time()
    with pytest.raises(InputError) as refused:
        untrusted.extract_zip(tmp_path / "code.zip", tmp_path / "in")
    assert time.process_time() - since < 1
    assert str(refused.value).isprintable()
    assert sorted(os.listdir(tmp_path)) == ["code.zip", "in"]


def test_a_zip_of_a_run_folder_is_the_run(quick_run: Path, tmp_path: Path) -> None:
    """Extracted files equal the run's and are deleted afterwards; a folder is used in
    place."""
    path = Path(
        shutil.make_archive(str(tmp_path / "run"), "zip", quick_run.parent, "run")
    )
    with record.run_folder(path) as folder:
        for name in ("config.yaml", "code.zip", "metrics.csv", "checkpoints/last.pt"):
            assert (folder / name).read_bytes() == (quick_run / name).read_bytes()
    assert not folder.exists()
    with record.run_folder(quick_run) as folder:
        assert folder == quick_run


@pytest.mark.parametrize(
    "names", [["a/config.yaml"], ["a/summary.json", "b/summary.json"]]
)
def test_a_zip_that_is_not_of_one_run_is_refused(
    names: list[str], tmp_path: Path
) -> None:
    (tmp_path / "run.zip").write_bytes(untrusted.zipped(dict.fromkeys(names, b"")))
    with (
        pytest.raises(InputError, match="expected a zip file of one run folder"),
        record.run_folder(tmp_path / "run.zip"),
    ):
        pass


A, B, C = (letter * 64 for letter in "abc")


def made_by(
    files: dict[str, str], commit: str | None = None, folder: Path | None = None
) -> Origin:
    return Origin({}, {"imported_files": files, "git": {"commit": commit}}, folder)


def altering(before: Origin, now: Origin, same_settings: bool = False) -> list[str]:
    now = now if same_settings else replace(now, settings={"seed": 1})
    return [c.key for c in change.changes_of_code(before, now) if c.alters_bits]


def test_imported_files_that_differ_can_alter_bits_and_nothing_else() -> None:
    """Another commit cannot. Negative control: it can if the imported files are
    unknown.

    A file of only one run, such as another model's, cannot, unless the settings are the
    same or a shared file differs: it may shadow a file of a package.
    """
    before = made_by({"a.py": A}, "1")
    now = made_by({"a.py": A, "numpy.py": B}, "2")
    assert altering(before, now) == altering(before, made_by({"a.py": A}, "2")) == []
    assert altering(before, made_by({"a.py": C, "numpy.py": B})) == ["a.py", "numpy.py"]
    assert altering(made_by({}, "1"), now) == ["git.commit"]
    origins = [replace(each, settings={"seed": 0}) for each in (before, now)]
    assert [each.key for each in changes(*origins) if each.alters_bits] == ["numpy.py"]


def test_a_kept_file_that_was_not_imported_is_none_that_is_new(tmp_path: Path) -> None:
    """A resumed process may import more files of code.zip. Negative control: other
    content."""
    (tmp_path / code.ARCHIVE).write_bytes(
        untrusted.zipped({"a.py": b"a", "b.py": b"b"})
    )
    files = {"a.py": code.sha256(b"a")}
    before = made_by(files, folder=tmp_path)
    for content, expected in ((b"b", []), (b"c", ["b.py"])):
        now = made_by({**files, "b.py": code.sha256(content)})
        assert altering(before, now, same_settings=True) == expected
    diff = [*code.diff(before, made_by({}), ["b.py", "c.py"])]
    assert diff[:2] == ["--- A/b.py", "+++ B/(none)"]


@pytest.mark.parametrize("name", [code.PATH, f"{code.PATH}.py", "sitecustomize.py"])
def test_an_entry_of_the_archive_that_no_run_writes_is_named(
    name: str, tmp_path: Path
) -> None:
    """PYTHONPATH lists three folders; other files are those imported, or the engine's.
    Negative
    control: the archive as written."""
    files = {
        "a.py": b"a",
        f"{code.ELSEWHERE}/seedbed/b.py": b"",
        code.PATH: code.PATH_ENTRY,
    }
    for added, found in (({}, None), ({name: b"/tmp"}, name)):
        (tmp_path / code.ARCHIVE).write_bytes(untrusted.zipped({**files, **added}))
        origin = made_by({"a.py": code.sha256(b"a")}, folder=tmp_path)
        assert origin.unlike_archive() == found


def test_a_path_of_a_record_is_no_pattern() -> None:
    """A file that moved is no change, and one called * hides no others. Negative
    control: its own name."""
    settings = ({"data": {"file": "*"}}, {"data": {"file": "b"}})
    digests = ({"*": A, "a": A}, {"b": A, "a": B})
    origins = [
        Origin(own, {"files_sha256": files})
        for own, files in zip(settings, digests, strict=True)
    ]
    assert [c.key for c in changes(*origins) if c.alters_bits] == ["files_sha256.a"]


def test_what_a_stranger_says_of_code_is_taken_as_text() -> None:
    """Any JSON is accepted; names that lead out of the folder are dropped."""
    evil = made_by({"../x": "1", "/y": "1", "z": 3}, "--output=x")  # type: ignore[dict-item]
    assert (evil.commit, evil.imported) == ("--output=x", {"z": "3"})
    for strange in ({}, {"git": 3, "imported_files": []}, {"git": {"commit": None}}):
        origin = Origin({}, strange)
        assert (origin.commit, origin.imported) == (None, {})


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return run(root, "git", *who, *words).stdout.strip()


def test_git_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIT_* variables, as set in hooks, are ignored; an untracked folder has no
    commit."""
    root = tmp_path / "repository"
    nothing = ({"commit": None, "dirty": None}, b"")
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
    (root / "project" / "b.py").touch()
    assert code.git_state(root / "project") == (clean | {"dirty": True}, b"")
    (root / ".gitignore").write_text("# not of the project\n")
    (root / "project" / "a.py").write_text("two\n")
    state, patch = code.git_state(root / "project")
    assert state == clean | {"dirty": True}
    assert b"-one\n+two\n" in patch
    assert b"not of the project" not in patch
    monkeypatch.setenv("PATH", "")
    assert code.git_state(root) == nothing
