"""Files that a run reads, such as weights to start from, by their digests."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils._pytree import tree_leaves

from seedbed.errors import InputError

# Whose values are arguments of classes that may open files.
_SECTIONS = ("data", "model", "method", "optimizer", "schedule")


def digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file that a configuration names, by its path there.

    These are the values of `model`, `data`, `method`, `optimizer` and `schedule` that are the path
    of a file that exists, from the current folder, and all files of `files`, which may name
    folders.

    Raises:
        InputError: `files` names nothing that exists.
    """
    values = tree_leaves([settings.get(name) for name in _SECTIONS])
    paths = {value for value in values if isinstance(value, str) and _is_file(value)}
    for text in settings.get("files") or ():
        inside = {str(path) for path in Path(text).rglob("*") if path.is_file()}
        if not inside and not _is_file(text):
            raise InputError(f"files: expected a file or a folder with files, got {text}")
        paths |= inside or {text}
    found = {}
    for path in sorted(paths):
        with open(path, "rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False
