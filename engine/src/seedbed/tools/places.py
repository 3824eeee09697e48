"""Which folders are runs, and which files a command may write."""

import os
from collections.abc import Iterator
from pathlib import Path

from seedbed import record
from seedbed.errors import InputError

_MAX_DEPTH = 16  # of folders of runs


def is_record(folder: Path) -> bool:
    """Return whether a folder is a run's, also of one that was killed before it wrote a summary."""
    started = (folder / "config.yaml").is_file() and (folder / ".lock").is_file()
    return started or (folder / "summary.json").is_file()


def run_folders(folder: Path, depth: int = 0) -> Iterator[Path]:
    """Yield the run folders at or below a folder, sorted by name.

    A run may be linked to; a folder of runs may not, since links can go round in circles.
    """
    if is_record(folder):
        yield folder
    elif depth <= _MAX_DEPTH and (depth == 0 or not folder.is_symlink()):
        try:
            below = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        except OSError:
            return
        for path in below:
            if path.is_dir():
                yield from run_folders(path, depth + 1)


def require_output(option: str, out: Path) -> Path:
    """Return a file that may be written: in a folder that is there, and in no run folder.

    Args:
        option: what names it on the command line, for messages.

    Raises:
        InputError: it may not.
    """
    place = out.resolve()
    run = next(filter(is_record, place.parents), None)
    if run is not None:
        raise InputError(
            f"{option}: expected a file outside run folders, got {out} in {run}; name another"
        )
    if place.is_dir():
        raise InputError(f"{option}: expected a file, got the folder {out}; name a file in it")
    if not place.parent.is_dir() or not os.access(place.parent, os.W_OK):
        raise InputError(
            f"{option}: expected a file in a folder that can be written, got {out}; create "
            f"{place.parent}, or name another"
        )
    return place


def write(option: str, out: Path, content: str | bytes) -> None:
    """Write a file that `require_output` returned, whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        record.write_atomically(out, content)
    except OSError as error:
        raise InputError(
            f"{option}: expected a file that can be written, got {error.strerror} for {out}; free "
            "space, or name another"
        ) from None
