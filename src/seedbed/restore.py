"""The code of a record, commit and patch, checked out beside this one for a while."""

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from seedbed import source
from seedbed.errors import InputError


@contextmanager
def environment(run: Path, code: Mapping[str, str], wanted: bool) -> Iterator[dict[str, str]]:
    """Give the environment variables with which a training process runs the code of a record.

    Args:
        run: its folder, for source.patch.
        code: what the record says of it, `git.commit` above all.
        wanted: whether to restore at all; none are needed for the code that is here.
    """
    if not wanted:
        yield {}
        return
    with checkout(run, code["git.commit"]) as tree:
        path = os.pathsep.join((str(tree / "src"), str(tree)))
        yield {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # not what lies in this folder


@contextmanager
def checkout(run: Path, commit: str) -> Iterator[Path]:
    """Give a git worktree with a commit and the patch of a run folder; it is removed at the end.

    Raises:
        InputError: the record names no commit, or the commit or the patch cannot be had.
    """
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        raise InputError(
            f"{run}: expected a git commit in the record, got {commit}; replay with the code that "
            "is here"
        )
    root = source.project_root()
    with tempfile.TemporaryDirectory(prefix="seedbed-code-") as parent:
        tree = Path(parent, "code")
        _git(root, f"commit {commit}", "worktree", "add", "--detach", "--quiet", str(tree), commit)
        try:
            patch = (run / "source.patch").resolve()
            if patch.is_file() and patch.stat().st_size:
                _git(tree, str(patch), "apply", "--whitespace=nowarn", str(patch))
            yield tree
        finally:
            _git(root, str(tree), "worktree", "remove", "--force", str(tree))


def _git(root: Path, what: str, *arguments: str) -> None:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
        raise InputError(
            f"{what}: expected code that git can restore, got {reason!r}; fetch the commit, or "
            "replay with the code that is here"
        )
