"""A zip of a record is plain files inside a folder, or it is refused in one line, and quickly."""

import io
import os
import shutil
import struct
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed.errors import InputError
from seedbed.record import archive
from tests.running import command, refusal

FILES = {"src/a.py": b"A = 1\n", "PYTHONPATH": b"src\n"}


def entry(name: str, mode: int = 0o100644) -> zipfile.ZipInfo:
    made = zipfile.ZipInfo(name)
    made.create_system, made.external_attr = 3, mode << 16
    return made


def with_entry(*entries: tuple[zipfile.ZipInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for info, content in entries:
            made.writestr(info, content)
    return buffer.getvalue()


def compressed(name: str, content: bytes, kind: int = zipfile.ZIP_DEFLATED) -> bytes:
    info = entry(name)
    info.compress_type = kind
    return with_entry((info, content))


def many(count: int) -> bytes:
    return archive.zipped({f"{number:06}.py": b"" for number in range(count)})


def more_than_said(count: int) -> bytes:
    """Return a zip file that says that it has one entry; the list of entries is long."""
    content = many(count)
    return content[:-14] + struct.pack("<2H", 1, 1) + content[-10:]


def renamed(name: str) -> bytes:
    """Return a zip file with a name that zipfile would not write as it is."""
    return archive.zipped({"x" * len(name): b""}).replace(b"x" * len(name), name.encode())


HOSTILE: dict[str, Callable[[], bytes]] = {
    "an absolute path": lambda: with_entry((entry("/tmp/x"), b"")),
    "a way out": lambda: with_entry((entry("../x.py"), b"")),
    "a backslash": lambda: with_entry((entry("..\\x.py"), b"")),
    "a link": lambda: with_entry((entry("src", 0o120777), b"/tmp")),
    "a device": lambda: with_entry((entry("x", 0o20644), b"")),
    "a control character": lambda: with_entry((entry("a\x1b[2J.py"), b"")),
    "no name": lambda: with_entry((entry(""), b"")),
    "a long name": lambda: with_entry((entry("a" * 2000), b"")),
    "twice": lambda: with_entry((entry("ab.py"), b""), (entry("aa.py"), b"")).replace(b"aa", b"ab"),
    "a file as a folder": lambda: archive.zipped({"a": b"", "a/b": b""}),
    "a bomb": lambda: compressed("a.py", bytes(20 << 20)),
    "another compression": lambda: compressed("a.py", b"x", zipfile.ZIP_LZMA),
    "much": lambda: archive.zipped(dict.fromkeys("abcde", bytes(15 << 20))),
    "100,000 entries": lambda: many(100_000),
    "more than it says": lambda: more_than_said(100_000),
    "a comment": lambda: archive.zipped(FILES)[:-2] + b"\1\0x",
    "cut off": lambda: archive.zipped(FILES)[:-9],
    "no zip": lambda: b"PK",
    "an encrypted entry": lambda: archive.zipped(FILES).replace(b"PK\1\2\x14\3\x14\0\0\0",
                                                                b"PK\1\2\x14\3\x14\0\1\0"),
    "damaged content": lambda: archive.zipped(FILES).replace(b"A = 1", b"A = 2"),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_plain_file_inside_is_refused(kind: str, tmp_path: Path) -> None:
    """In one line, within a second, and nothing is written outside; control: see below."""
    (tmp_path / "code.zip").write_bytes(HOSTILE[kind]())
    (tmp_path / "in").mkdir()
    since = time.perf_counter()
    with pytest.raises(InputError) as refused:
        archive.extract(tmp_path / "code.zip", tmp_path / "in")
    assert time.perf_counter() - since < 1
    assert "\n" not in str(refused.value)
    assert str(refused.value).isprintable()
    assert sorted(os.listdir(tmp_path)) == ["code.zip", "in"]


def test_equal_files_give_equal_bytes_and_come_back(tmp_path: Path) -> None:
    """In whichever order they are; control: another file, other bytes."""
    path, folder = tmp_path / "code.zip", tmp_path / "in"
    path.write_bytes(archive.zipped(FILES))
    assert archive.zipped(dict(reversed(FILES.items()))) == path.read_bytes()
    assert archive.zipped({**FILES, "src/a.py": b"A = 2\n"}) != path.read_bytes()
    folder.mkdir()
    assert archive.extract(path, folder) == FILES
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES
    path.write_bytes(many(archive.MAX_ENTRIES))
    assert len(archive.read(path)) == archive.MAX_ENTRIES


def zip_of(run: Path, out: Path) -> Path:
    """Return a zip file of a run folder, as `zip -r` makes it."""
    subprocess.run(["zip", "-qr", str(out), run.name], cwd=run.parent, check=True)
    return out


needs_zip = pytest.mark.skipif(shutil.which("zip") is None, reason="needs zip")


@needs_zip
def test_a_zip_of_a_run_folder_is_the_run(quick_run: Path, tmp_path: Path) -> None:
    """With its checkpoints; a folder is itself; nothing of it stays."""
    path = zip_of(quick_run, tmp_path / "run.zip")
    with archive.run_folder(path) as folder:
        for name in ("config.yaml", "code.zip", "metrics.csv", "checkpoints/last.pt"):
            assert (folder / name).read_bytes() == (quick_run / name).read_bytes()
        assert not (folder / "train.log").exists()
    assert not folder.exists()
    with archive.run_folder(quick_run) as folder:
        assert folder == quick_run


@pytest.mark.parametrize(
    "files",
    [
        {"a/config.yaml": b""},
        {"a/config.yaml": b"", "a/summary.json": b"", "b/config.yaml": b"", "b/summary.json": b""},
        {"config.yaml": b"", "summary.json": b"", "../environment.json": b""},
        {"config.yaml": b"", "summary.json": b"", "metrics.csv": bytes(20 << 20)},
    ],
    ids=["no run", "two runs", "a way out", "a bomb"],
)
def test_a_zip_that_is_not_of_one_run_is_refused(files: dict[str, bytes], tmp_path: Path) -> None:
    """By verify and compare, with exit status 2 and one line."""
    with zipfile.ZipFile(tmp_path / "run.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in files.items():
            made.writestr(name, content)
    path = str(tmp_path / "run.zip")
    for words in (("scripts/verify.py", path), ("scripts/compare.py", path, path)):
        assert refusal(command(*words)).startswith(f"{path}: expected a zip file of a record")
    assert os.listdir(tmp_path) == ["run.zip"]
