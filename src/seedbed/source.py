"""The code that ran: git commit and patch of what was not committed."""

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

# Untracked files that are larger are named in the record, not copied into it.
MAX_UNTRACKED_BYTES = 1 << 20
# Whatever the user's git is set to, patches look the same.
_DIFF = (
    "diff", "--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv",
    "--no-color", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip


def project_root() -> Path:
    """Return the folder of the checkout that this package runs from."""
    return Path(__file__).resolve().parents[2]


def snapshot(root: Path) -> tuple[dict[str, Any], bytes]:
    """Return what git says of a checkout, and a patch of everything that is not committed.

    Returns:
        {"commit", "dirty", "omitted"} (all None outside a checkout, or without git), and the
        output of `git diff` for tracked and untracked files: commit + patch = the code that ran.
    """
    commit = _git(root, "rev-parse", "HEAD")
    if commit is None:
        return {"commit": None, "dirty": None, "omitted": None}, b""
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z") or b""
    names = [os.fsdecode(name) for name in untracked.split(b"\0") if name]
    omitted = [name for name in names if _size(root / name) > MAX_UNTRACKED_BYTES]
    patch = _patch(root, [name for name in names if name not in omitted])
    state = {"commit": commit.decode().strip(), "dirty": bool(patch or omitted), "omitted": omitted}
    return state, patch


def files(root: Path, commit: str) -> dict[str, str] | None:
    """Return the blob id of each file of a commit, by path; None if git does not have it."""
    listing = _git(root, "ls-tree", "-r", "-z", "--full-tree", commit)
    if listing is None:
        return None
    entries = (entry.partition(b"\t") for entry in listing.split(b"\0") if entry)
    return {os.fsdecode(path): facts.split()[2].decode() for facts, _, path in entries}


def patched_files(patch: bytes) -> dict[str, str]:
    """Return the blob id of each file that a patch of `snapshot` makes; empty if it deletes it."""
    blobs = {}
    for section in (b"\n" + patch).split(b"\ndiff --git ")[1:]:
        path = os.fsdecode(section.partition(b"\n")[0].rpartition(b" b/")[2])
        found = re.search(rb"^index [0-9a-f]+\.\.([0-9a-f]+)", section, re.MULTILINE)
        if found:  # or only its permissions changed
            blobs[path] = found[1].decode().strip("0") and found[1].decode()
    return blobs


def _patch(root: Path, untracked: list[str]) -> bytes:
    """Diff against HEAD with untracked files, leaving the user's index as it is."""
    if not untracked:
        return _git(root, *_DIFF, "HEAD") or b""
    with tempfile.TemporaryDirectory() as folder:
        objects = (_git(root, "rev-parse", "--git-path", "objects") or b"").decode().strip()
        environment = {
            "GIT_INDEX_FILE": str(Path(folder, "index")),
            "GIT_OBJECT_DIRECTORY": folder,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((root / objects).resolve()),
        }
        _git(root, "read-tree", "HEAD", environment=environment)
        _git(root, "add", "--update", environment=environment)
        _git(root, "add", "--", *untracked, environment=environment)
        return _git(root, *_DIFF, "--cached", "HEAD", environment=environment) or b""


def _git(root: Path, *arguments: str, environment: dict[str, str] | None = None) -> bytes | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            check=True,
            env={**os.environ, **(environment or {})},
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
