"""The code of a record, commit and patch, checked out beside this one for a while."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from seedbed import project
from seedbed.errors import InputError
from seedbed.record import git
from seedbed.record.code import Code


@dataclass(frozen=True)
class Tree:
    """Code that training processes import.

    Attributes:
        root: the folder of its checkout.
        variables: the environment variables with which a process imports it.
        is_recorded: it is the code of a record, and not that of this checkout.
    """

    root: Path
    variables: dict[str, str] = field(default_factory=dict)
    is_recorded: bool = True

    @classmethod
    def at(cls, root: Path) -> "Tree":
        """Return the code of a record that lies in a folder."""
        places = (root / "engine/src", root / "src", root)
        path = os.pathsep.join(map(str, places))
        variables = {"PYTHONPATH": path, "PYTHONSAFEPATH": "1", project.PROJECT: str(root)}
        return cls(root, variables)  # not what lies here


def here() -> Tree:
    """Return the code of this checkout, which processes import anyway."""
    return Tree(project.root(), is_recorded=False)


@contextmanager
def code_of(run: Path, code: Code, wanted: bool) -> Iterator[Tree]:
    """Yield the code to replay a run with.

    Args:
        run: its folder, for source.patch.
        wanted: whether to check the code of the record out; otherwise it is that of this checkout.
    """
    if not wanted:
        yield here()
        return
    with checkout(run, str(code.commit)) as tree:
        yield Tree.at(tree)


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
    root = project.root()
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
