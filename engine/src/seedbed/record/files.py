"""Files that are replaced whole: a reader, or a power cut, finds the old content or the new."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedbed.record import text


def write_atomically(path: Path, content: str | bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, text.as_json(value) + "\n")
