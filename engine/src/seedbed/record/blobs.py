"""Which files a record's commit and patch hold, by the ids that git gives their content."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from seedbed.record import git


def is_commit(name: str) -> bool:
    """Return whether a name from a record is a commit's whole id, and no option or revision."""
    return re.fullmatch(r"[0-9a-f]{40}([0-9a-f]{24})?", name) is not None


def files(root: Path, commit: str) -> dict[str, str] | None:
    """Return the blob id of each file of a commit, by path; None if git does not have it."""
    listing = git.run(root, "ls-tree", "-r", "-z", commit) if is_commit(commit) else None
    if listing is None:
        return None
    entries = (entry.partition(b"\t") for entry in listing.split(b"\0") if entry)
    return {
        git.printable(os.fsdecode(path)): facts.split()[2].decode() for facts, _, path in entries
    }


def recorded_files(
    root: Path, commit: str | None, patched: dict[str, str]
) -> dict[str, str] | None:
    """Return the blob id of each file that commit and patch hold; None if git has no such commit.

    Args:
        patched: what `patched_files` returns.
    """
    committed = files(root, commit) if commit else ({} if patched else None)
    if committed is None:
        return None
    every = {**committed, **patched}
    return {path: every[path] for path in without_runs(every) if every[path]}


def patched_files(patch: bytes) -> dict[str, str]:
    """Return the blob id of each file that a patch of `snapshot` makes; empty if it deletes it."""
    blobs = {}
    for path, section in git.sections(patch):
        found = re.search(rb"^index [0-9a-f]+\.\.([0-9a-f]+)", section, re.MULTILINE)
        if found:  # or only its permissions changed
            blobs[path] = found[1].decode().strip("0") and found[1].decode()
    return blobs


def without_runs(names: Iterable[str]) -> Iterator[str]:
    """Yield the names of files that are not in a run folder, as far as the names show."""
    names = list(names)
    marks = {name for name in names if PurePosixPath(name).name in ("config.yaml", "summary.json")}
    runs = {
        folder
        for folder in {str(PurePosixPath(mark).parent) for mark in marks} - {"."}
        if {f"{folder}/config.yaml", f"{folder}/summary.json"} <= marks
    }
    for name in names:
        if not any(str(parent) in runs for parent in PurePosixPath(name).parents):
            yield name
