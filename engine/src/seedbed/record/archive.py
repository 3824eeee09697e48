"""Zip files of records, which may be untrusted: nothing is written outside the target folder."""

import io
import os
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from seedbed.errors import InputError
from seedbed.record import untrusted

MAX_CODE_BYTES = 64 << 20
MAX_RUN_BYTES = 8 << 30
MAX_DIRECTORY_BYTES = 4 << 20  # of the central directory of a zip file
MAX_RATIO = 200  # zeros shrink to a thousandth; tables and weights to a tenth at best
_UNREADABLE = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error)


def zipped(files: Mapping[str, bytes]) -> bytes:
    """Return a reproducible zip file: sorted, uncompressed, with a fixed time and mode."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # dated 1980-01-01, the earliest possible
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, files[name])
    return buffer.getvalue()


def read(path: Path) -> dict[str, bytes]:
    """Return the content of the files in a code.zip, by name."""
    with _opened(path, MAX_CODE_BYTES) as (archive, names):
        return {name: archive.read(name) for name in names}


def extract(path: Path, folder: Path, most_bytes: int = MAX_CODE_BYTES) -> None:
    """Write the files in a zip file into an empty folder."""
    with _opened(path, most_bytes) as (archive, names):
        archive.extractall(folder, names)


def is_inside(name: str) -> bool:
    """Return whether a name from a record is a short relative path that stays in its folder."""
    leads_out = re.search(r"^/|\\|(^|/)\.{0,2}(/|$)", name)
    return len(name) <= 1024 and name.isprintable() and not leads_out


@contextmanager
def _opened(path: Path, most_bytes: int) -> Iterator[tuple[zipfile.ZipFile, list[str]]]:
    """Yield a zip file and its file names; raise InputError for links, outside paths, zip bombs."""
    try:
        with untrusted.open_file(path, most_bytes) as file:
            # `zipfile` reads the directory at once. A record's has no comment, and is not Zip64.
            size = os.fstat(file.fileno()).st_size
            both = os.pread(file.fileno(), 20 + 22, max(0, size - 20 - 22))
            locator, end = both[:20], both[20:]  # only Zip64 files have the locator
            if not end.startswith(b"PK\5\6") or locator.startswith(b"PK\6\7"):
                raise ValueError(
                    "a file of another kind, truncated, of more than 4 GiB, or with a comment"
                )
            if int.from_bytes(end[12:16], "little") > MAX_DIRECTORY_BYTES:
                raise ValueError("too many entries")
            with zipfile.ZipFile(file) as archive:
                entries = [entry for entry in archive.infolist() if not entry.is_dir()]
                names = [entry.filename for entry in entries]
                if len(set(names)) < len(names):
                    raise ValueError("two entries of the same name")
                for entry in entries:
                    is_file = entry.external_attr >> 28 in (0, 0o10)
                    is_known = entry.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                    if not (is_inside(entry.filename) and is_file and is_known):
                        name = entry.filename[:100]
                        raise ValueError(f"an entry {name!r} that is no file inside the folder")
                most_bytes = min(most_bytes, (1 << 20) + MAX_RATIO * size)
                if sum(entry.file_size for entry in entries) > most_bytes:
                    raise ValueError(f"files of more than {most_bytes:,} bytes")
                yield archive, names
    except _UNREADABLE as error:
        reason = untrusted.first_line(error)
        raise InputError(f"{path}: expected a zip file of a record, got {reason}") from None
