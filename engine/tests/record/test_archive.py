"""A zip of a record is plain files inside a folder, or it is refused in one line, and quickly."""

import io
import os
import shutil
import struct
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed.errors import InputError
from seedbed.record import archive

FILES = {"src/a.py": b"A = 1\n", "PYTHONPATH": b"src\n"}


def holding(*entries: tuple[str, bytes], mode: int = 0o100644, kind: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as made:
        for name, content in entries:
            info = zipfile.ZipInfo(name)
            info.create_system, info.external_attr, info.compress_type = 3, mode << 16, kind
            made.writestr(info, content)
    return buffer.getvalue()


def many() -> bytes:
    return archive.zipped({f"{number:06}.py": b"" for number in range(100_000)})


# The last says that it has one entry; a flag says that the one before is encrypted.
ENTRY = b"PK\1\2\x14\3\x14\0\0"
HOSTILE: dict[str, Callable[[], bytes]] = {
    "an absolute path": lambda: holding(("/tmp/x", b"")),
    "a way out": lambda: holding(("../x.py", b"")),
    "a backslash": lambda: holding(("..\\x.py", b"")),
    "a control character": lambda: holding(("a\x1b[2J.py", b"")),
    "a link": lambda: holding(("src", b"/tmp"), mode=0o120777),
    "twice": lambda: holding(("ab.py", b""), ("aa.py", b"")).replace(b"aa", b"ab"),
    "a file as a folder": lambda: archive.zipped({"a": b"", "a/b": b""}),
    "a bomb": lambda: holding(("a.py", bytes(20 << 20)), kind=zipfile.ZIP_DEFLATED),
    "another compression": lambda: holding(("a.py", b"x"), kind=zipfile.ZIP_LZMA),
    "much": lambda: archive.zipped(dict.fromkeys("abcde", bytes(15 << 20))),
    "a comment": lambda: archive.zipped(FILES)[:-2] + b"\1\0x",
    "cut off": lambda: archive.zipped(FILES)[:-9],
    "damaged content": lambda: archive.zipped(FILES).replace(b"A = 1", b"A = 2"),
    "an encrypted entry": lambda: archive.zipped(FILES).replace(ENTRY, ENTRY[:-1] + b"\1"),
    "100,000 entries": many,
    "more than it says": lambda: many()[:-14] + struct.pack("<2H", 1, 1) + many()[-10:],
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_plain_file_inside_is_refused(kind: str, tmp_path: Path) -> None:
    """In one line, within a second, and nothing is written outside; control: see below."""
    (tmp_path / "code.zip").write_bytes(HOSTILE[kind]())
    (tmp_path / "in").mkdir()
    since = time.process_time()
    with pytest.raises(InputError) as refused:
        archive.extract(tmp_path / "code.zip", tmp_path / "in")
    assert time.process_time() - since < 1
    assert str(refused.value).isprintable()
    assert sorted(os.listdir(tmp_path)) == ["code.zip", "in"]


def test_equal_files_give_equal_bytes_and_come_back(tmp_path: Path) -> None:
    """In whichever order they are; control: another file, other bytes."""
    path, folder = tmp_path / "code.zip", tmp_path / "in"
    path.write_bytes(archive.zipped(FILES))
    assert archive.zipped(dict(reversed(FILES.items()))) == path.read_bytes()
    assert archive.zipped({**FILES, "src/a.py": b"A = 2\n"}) != path.read_bytes()
    folder.mkdir()
    archive.extract(path, folder)
    assert {name: (folder / name).read_bytes() for name in FILES} == FILES == archive.read(path)


def test_a_zip_of_a_run_folder_is_the_run(quick_run: Path, tmp_path: Path) -> None:
    """With its checkpoints; a folder is itself; nothing of it stays."""
    path = Path(shutil.make_archive(str(tmp_path / "run"), "zip", quick_run.parent, "run"))
    with archive.run_folder(path) as folder:
        for name in ("config.yaml", "code.zip", "metrics.csv", "checkpoints/last.pt"):
            assert (folder / name).read_bytes() == (quick_run / name).read_bytes()
    assert not folder.exists()
    with archive.run_folder(quick_run) as folder:
        assert folder == quick_run


@pytest.mark.parametrize("names", [["a/config.yaml"], ["a/summary.json", "b/summary.json"]])
def test_a_zip_that_is_not_of_one_run_is_refused(names: list[str], tmp_path: Path) -> None:
    (tmp_path / "run.zip").write_bytes(archive.zipped(dict.fromkeys(names, b"")))
    with (
        pytest.raises(InputError, match="expected a zip file of one run folder"),
        archive.run_folder(tmp_path / "run.zip"),
    ):
        pass
