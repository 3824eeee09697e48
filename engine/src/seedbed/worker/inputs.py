"""Files that a run reads, such as weights to start from, by their digests."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seedbed.errors import InputError

# Whose values are arguments of classes that may open files.
_SECTIONS = ("data", "model", "method", "optimizer", "schedule")
_NO_ARGUMENTS = ("_target_", "name", "kind", "accepts", "requires", "collate")


def digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of each file that a configuration names, by its path there.

    These are the values of `model`, `data`, `method`, `optimizer` and `schedule` that are the path
    of a file that exists, from the current folder, and all files of `files`, which may name
    folders.

    Raises:
        InputError: `files` names nothing that exists.
    """
    named = [text for name in _SECTIONS for text in _texts(settings.get(name))]
    paths = {text for text in named if _is_file(text)}
    for text in settings.get("files") or ():
        inside = [path for path in sorted(Path(text).rglob("*")) if path.is_file()]
        if not inside and not Path(text).is_file():
            raise InputError(f"files: expected a file or a folder with files, got {text}; mend it")
        paths |= {str(path) for path in inside} or {text}
    found = {}
    for path in sorted(paths):
        with open(path, "rb") as file:
            found[path] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if name not in _NO_ARGUMENTS:
                yield from _texts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or no name at all
        return False
