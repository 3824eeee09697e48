"""The code of a record, commit and patch, checked out beside this one for a while."""

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from seedbed.errors import InputError
from seedbed.record import git, source


@contextmanager
def environment(run: Path, code: Mapping[str, str], wanted: bool) -> Iterator[dict[str, str]]:
    """Yield the environment variables with which a training process runs the code of a record.

    Args:
        run: its folder, for source.patch.
        code: `Record.code`, of which `git.commit` is read.
        wanted: whether to check it out; the code that is here needs no variables.
    """
    if not wanted:
        yield {}
        return
    with checkout(run, code["git.commit"]) as tree:
        path = os.pathsep.join((str(tree / "src"), str(tree)))
        yield {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}  # not what lies in this folder


@contextmanager
def checkout(run: Path, commit: str) -> Iterator[Path]:
    """Yield a git worktree with a commit and the patch of a run folder; it is removed at the end.

    Where the code was in no repository, the patch alone is the code.

    Raises:
        InputError: the record names no commit, or git cannot check them out.
    """
    patch = (run / "source.patch").resolve()
    has_patch = patch.is_file() and patch.stat().st_size > 0
    if not re.fullmatch(r"[0-9a-f]{40,64}", commit) and not (commit == "None" and has_patch):
        raise InputError(
            f"{run}: expected a git commit in the record, got {commit}; replay with the code that "
            "is here"
        )
    root = source.project_root()
    with tempfile.TemporaryDirectory(prefix="seedbed-code-") as parent:
        tree = Path(parent, "code")
        with _worktree(root, tree, commit) as place:
            if has_patch:
                words = ("apply", "--whitespace=nowarn", f"--directory={place}", str(patch))
                _git(tree, str(patch), *words)
            yield tree / place


@contextmanager
def _worktree(root: Path, tree: Path, commit: str) -> Iterator[str]:
    """Check a commit out for a while; yield where in it the project's root is."""
    if commit == "None":
        tree.mkdir()
        _git(tree, str(tree), "init", "--quiet", "--template=")
        yield ""
        return
    prefix = git.run(root, "rev-parse", "--show-prefix") or b""
    _git(root, f"commit {commit}", "worktree", "add", "--detach", "--quiet", str(tree), commit)
    try:
        yield os.fsdecode(prefix.removesuffix(b"\n"))
    finally:
        _git(root, str(tree), "worktree", "remove", "--force", str(tree))


def _git(root: Path, what: str, *arguments: str) -> None:
    try:
        done = git.call(root, *git.optional_filters(root), *arguments)
        error = done.stderr.decode(errors="replace") if done.returncode else None
    except OSError as failure:
        error = f"{failure.strerror}: git"
    if error is not None:
        reason = (error.strip().splitlines() or ["git failed"])[-1]
        raise InputError(
            f"{what}: expected code that git can check out, got {reason!r}; fetch the commit, or "
            "replay with the code that is here"
        )
