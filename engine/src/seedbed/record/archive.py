"""Zip files of records: code.zip, and whole run folders. They may come from strangers.

Nothing that is read is executed, or written outside the folder that the caller names.
"""

import io
import os
import re
import shutil
import struct
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from seedbed.errors import InputError
from seedbed.record import untrusted
from seedbed.record.folder import FILES

MAX_ENTRIES = 10_000
MAX_DIRECTORY_BYTES = 4 << 20  # of the list of entries at the end of a zip file
MAX_CODE_BYTES = 64 << 20
MAX_RUN_BYTES = 8 << 30
MAX_RATIO = 200  # zeros shrink to a thousandth; tables and weights to a tenth at best
_SMALL = 1 << 20  # bytes; below that, any ratio is harmless
_NAME_BYTES = 1024
_END, _ZIP64 = struct.Struct("<4s4H2LH"), struct.Struct("<4sLQL")
_UNREADABLE = (OSError, EOFError, NotImplementedError, RuntimeError, ValueError, zipfile.BadZipFile)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a zip file: sorted, not compressed, one time and mode, so equal files, equal bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # of 1980-01-01, the first time there is
            entry.create_system = 3  # Unix, also where it is not
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def read(path: Path) -> dict[str, bytes]:
    """Return the content of the files in a code.zip, by name.

    Raises:
        InputError: there is none, or it holds what `zipped` does not write.
    """
    with _opened(path, MAX_CODE_BYTES, (zipfile.ZIP_STORED,)) as archive:
        return {name: archive.read(name) for name in _files(archive)}


def extract(path: Path, folder: Path) -> dict[str, bytes]:
    """Write the files in a code.zip into an empty folder; return their content by name."""
    files = read(path)
    try:
        for name, content in files.items():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    except OSError as error:  # one name is a folder of another, or too long
        raise InputError(f"{path}: expected files, got {name!r} ({error.strerror})") from None
    return files


@contextmanager
def run_folder(path: Path) -> Iterator[Path]:
    """Yield a run folder; of a zip of one, the files of the record are extracted for a while."""
    if path.suffix != ".zip" or path.is_dir():
        yield path
        return
    with TemporaryDirectory(prefix="seedbed-run-") as place:
        folder, methods = Path(place), (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
        with _opened(path, MAX_RUN_BYTES, methods) as archive:
            names = _files(archive)
            paths = {name.removesuffix("config.yaml") for name in names}
            runs = [p for p in paths if {f"{p}config.yaml", f"{p}summary.json"} <= {*names}]
            if len(runs) != 1:
                raise ValueError(f"{len(runs) or 'no'} run folders in it")
            (folder / "checkpoints").mkdir()
            for name in names:
                inside = name.removeprefix(runs[0]) if name.startswith(runs[0]) else ""
                if inside in FILES or re.fullmatch(r"checkpoints/\w+\.pt", inside):
                    with archive.open(name) as source, open(folder / inside, "wb") as target:
                        shutil.copyfileobj(source, target, 1 << 20)
        yield folder


@contextmanager
def _opened(path: Path, most_bytes: int, methods: tuple[int, ...]) -> Iterator[zipfile.ZipFile]:
    """Open a zip file all of whose entries are plain files inside a folder, and not too large."""
    try:
        with untrusted.open_file(path, most_bytes) as file:
            _require_short_directory(file.fileno())
            with zipfile.ZipFile(file) as archive:
                _require_plain(archive.infolist(), most_bytes, methods)
                yield archive
    except _UNREADABLE as error:
        reason = getattr(error, "strerror", None) or str(error) or "one that is cut off"
        raise InputError(f"{path}: expected a zip file of a record, got {reason}") from None


def _files(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if not name.endswith("/")]


def _require_short_directory(descriptor: int) -> None:
    """Raise ValueError for a list of entries that would take long to read.

    It is read before any limit could be applied, so what the end of the file says is looked at
    first. A comment, or the form for more than 65,535 entries, is not what zip writes for a record.
    """
    size = os.fstat(descriptor).st_size
    end = os.pread(descriptor, _END.size, max(0, size - _END.size))
    if len(end) < _END.size or not end.startswith(b"PK\5\6"):
        raise ValueError("another file, one that is cut off, or one with a comment")
    *_, entries, directory_bytes, _, _ = _END.unpack(end)
    before = os.pread(descriptor, _ZIP64.size, max(0, size - _END.size - _ZIP64.size))
    if before.startswith(b"PK\6\7") or entries > MAX_ENTRIES:
        raise ValueError(f"more than {MAX_ENTRIES:,} entries, or more than 4 GiB")
    if directory_bytes > MAX_DIRECTORY_BYTES:
        raise ValueError(f"names of more than {MAX_DIRECTORY_BYTES:,} bytes")


def _require_plain(
    entries: list[zipfile.ZipInfo], most_bytes: int, methods: tuple[int, ...]
) -> None:
    """Raise ValueError for what is not a plain file inside the folder, or is too large."""
    seen = set[str]()
    left = most_bytes
    for entry in entries:
        if entry.filename.endswith("/"):  # a folder, which is left out
            continue
        name, packed = entry.filename, entry.compress_size
        is_file = (entry.external_attr >> 28) in (0, 0o10) and not entry.flag_bits & 1
        left -= entry.file_size
        bomb = entry.file_size > max(_SMALL, MAX_RATIO * packed)
        if not is_inside(name) or name in seen or not is_file or entry.compress_type not in methods:
            raise ValueError(f"an entry {name[:100]!r} that is no plain file inside the folder")
        if left < 0 or bomb:
            raise ValueError(f"more than {most_bytes:,} bytes, or {name[:100]!r} shrunk too far")
        seen.add(name)


def is_inside(name: str) -> bool:
    """Return whether a name from a record is the path of a file inside a folder."""
    return (
        bool(name)
        and len(name) <= _NAME_BYTES
        and name.isprintable()
        and not re.search(r"^/|\\|(^|/)\.{0,2}(/|$)", name)
    )
