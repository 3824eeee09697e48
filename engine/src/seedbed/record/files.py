"""Digests of the files and folders that a run reads, and which of them have changed
since."""

import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from seedbed import project
from seedbed.errors import InputError

# sections of a configuration whose values may be paths of what a run reads
SECTIONS = ("data", "model", "method", "optimizer", "schedule")

_CHEAP_FILES = 20_000
_CHEAP_BYTES = 256 << 20
_MOST_FILES = 200_000
TIMES = " (times)"  # after the path of a large folder


def named_in(settings: Mapping[str, Any], stated: Sequence[str] = ()) -> dict[str, str]:
    """Return a digest of each file and folder in a configuration, by its path there.

    These are the values in `SECTIONS` that are paths of existing files, those in `data`
    that are folders, and all entries of `files`. Data sets must be built: that may
    write files. Folders of the splits `stated`, whose data sets state digests
    themselves, are left out.
    """
    data = settings.get("data") or {}
    listed = settings.get("files") or ()
    named = {
        path
        for name in SECTIONS
        for path in texts(settings.get(name))
        if os.path.isfile(path)
    }
    known = {path for split in stated for path in texts(data.get(split))}
    folders = {path for path in texts(data) if os.path.isdir(path)}
    for path in listed:
        if not os.path.isfile(path) and not any(
            each.is_file() for each in Path(path).rglob("*")
        ):
            raise InputError(
                f"files: expected a file or a folder with files, got {path}"
            )
    digests: dict[str, str] = {}
    for path in sorted(named.union(listed, folders - known)):
        try:
            if os.path.isdir(path):
                digests |= of_folder(path, path in listed)
            else:
                digests[path] = of_file(path)
        except OSError as error:  # the data set may not need it
            digests[path] = f"not recorded: {error.strerror}"
    return digests


def texts(tree: Any) -> Iterator[str]:
    """Yield the texts in nested mappings and lists."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping | list):
        for value in tree.values() if isinstance(tree, Mapping) else tree:
            yield from texts(value)


def changed(recorded: Mapping[str, str]) -> list[str]:
    """Return the paths, relative to the project, of recorded digests that differ or
    lack here."""
    current: dict[str, str] = {}
    for path, value in recorded.items():
        local_path = str(project.root() / path)
        with suppress(OSError):
            if os.path.isdir(local_path):
                if _has_other_count(local_path, value):
                    continue
                digests = of_folder(
                    local_path, always_contents=not value.startswith("names and sizes")
                )
                current |= {
                    key.replace(local_path, path, 1): digest
                    for key, digest in digests.items()
                }
            elif os.path.isfile(local_path):
                current[path] = of_file(local_path)
    # What could not be recorded counts as unchanged.
    known = {
        path: value
        for path, value in recorded.items()
        if not value.startswith("not rec")
    }
    return sorted(path for path, value in known.items() if current.get(path) != value)


def _has_other_count(folder: str, digest: str) -> bool:
    """Return whether a folder has more or fewer files than a digest says, if it says
    so.

    Then nothing is read: a stranger's record may name any folder of the machine.
    """
    count, of_contents, _ = digest.partition(" files: ")
    if not of_contents or not count.isdecimal() or len(count) > len(str(_MOST_FILES)):
        return bool(of_contents)
    return sum(1 for _ in itertools.islice(_walk(folder), int(count) + 1)) != int(count)


def missing(recorded: object) -> dict[str, str]:
    """Return the recorded digests, of an untrusted record, of paths at which there is
    nothing."""
    known = recorded if isinstance(recorded, Mapping) else {}
    paths = {str(path): str(digest) for path, digest in known.items()}
    return {
        path: digest
        for path, digest in paths.items()
        if not path.endswith(TIMES) and not os.path.exists(project.root() / path)
    }


def of_file(path: str | Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def of_folder(path: str, always_contents: bool) -> dict[str, str]:
    """Return one digest of a folder's files, of their contents if that takes less than
    a second.

    What is hashed depends on sizes alone, not on a clock: two records must be
    comparable. Files and folders whose names begin with a dot, and bytecode, are left
    out: tools write them.
    """
    if project.root().resolve().is_relative_to(Path(path).resolve()):
        return {path: "not recorded: the project is in it"}  # and changes in every run
    most = None if always_contents else _MOST_FILES + 1
    entries = sorted(itertools.islice(_walk(path), most))
    if len(entries) == most:
        return {path: f"not recorded: more than {_MOST_FILES:,} files"}
    is_small = (
        len(entries) <= _CHEAP_FILES
        and sum(each[1] for each in entries) <= _CHEAP_BYTES
    )
    if is_small or always_contents:
        contents = [(name, of_file(os.path.join(path, name))) for name, *_ in entries]
        return {path: f"{len(entries)} files: {_of_text(contents)}"}
    sizes = [each[:2] for each in entries]
    times = [each[2] for each in entries]
    return {path: f"names and sizes: {_of_text(sizes)}", path + TIMES: _of_text(times)}


def stamp(path: str) -> str:
    """Return a digest of sizes and times of a file or a folder, of a large one's first
    files."""
    if os.path.isfile(path):
        status = os.stat(path)
        return _of_text((status.st_size, status.st_mtime_ns))
    if project.root().resolve().is_relative_to(Path(path).resolve()):
        return ""  # it changes in every run
    return _of_text(sorted(itertools.islice(_walk(path), _CHEAP_FILES)))


def _walk(path: str) -> Iterator[tuple[str, int, int]]:
    """Yield relative path, size and time of each file of a folder, but for tools'
    files; of a folder that links lead to again, those of the first path to it."""
    known = set[str]()
    for folder, folders, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in known:
            folders.clear()
            continue
        known.add(real)
        folders[:] = sorted(
            name for name in folders if name[0] != "." and name != "__pycache__"
        )
        for name in sorted(names):
            if name[0] != "." and os.path.isfile(file := os.path.join(folder, name)):
                status = os.stat(file)
                yield os.path.relpath(file, path), status.st_size, status.st_mtime_ns


def _of_text(value: object) -> str:
    return hashlib.sha256(repr(value).encode()).hexdigest()
