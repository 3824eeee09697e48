"""The code that ran: git commit, patch of what was not committed, and what neither holds."""

import hashlib
import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed.record import git
from seedbed.record.folder import is_in_run

# A larger file that is not tracked, and what is beyond so much in all, is named, not copied.
MAX_UNTRACKED_BYTES = 1 << 20
MAX_PATCHED_BYTES = 16 << 20
_MOST_NAMED = 20  # files of a folder; of more, the folder is named
_DIFF = (
    "diff-index", "-p", "--cached", "--binary", "--full-index", "--no-renames", "--no-ext-diff",
    "--no-textconv", "--no-color", "--unified=3", "--inter-hunk-context=0", "--submodule=short",
    "--ignore-submodules=none", "--relative", "--src-prefix=a/", "--dst-prefix=b/",
)  # fmt: skip


def snapshot(root: Path) -> tuple[dict[str, Any], bytes]:
    """Return what git knows of a checkout, and a patch of everything that is not committed.

    Run folders, wherever they lie, and what git ignores are no code. Without a repository the
    patch holds every file.

    Returns:
        {"commit", "dirty", "lacks"} and the patch: commit + patch = the code that ran, but for
        the files that `lacks` names, by path, with the reason. Without git, commit and dirty are
        None, and `lacks` has the reason.
    """
    with tempfile.TemporaryDirectory(prefix="seedbed-git-") as folder:
        copy = _copy(root, Path(folder))
        if isinstance(copy, str):
            return {"commit": None, "dirty": None, "lacks": {".": copy}}, b""
        tracked, untracked = copy.changed(), copy.untracked()
        chosen, lacks = _choose(root, tracked, untracked)
        lacks |= dict.fromkeys(copy.add(chosen), "git cannot read it")
        lacks |= copy.submodules()
        patch = copy.git(*_DIFF, copy.base)
        if patch is None:
            lacks["."] = "git cannot write the patch"
    state = {"commit": copy.commit, "dirty": bool(patch or lacks), "lacks": _grouped(lacks)}
    return state, patch or b""


def described(path: Path) -> str:
    """Return the length of a file, and a digest of what it holds."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{path.stat().st_size} bytes, SHA-256 {digest[:16]}"


@dataclass(frozen=True)
class _Copy:
    """The index of a repository, copied, so that the user's own stays as it is."""

    root: Path
    variables: dict[str, str]
    options: list[str]
    commit: str | None
    base: str  # the commit, or the empty tree

    def git(self, *arguments: str, stdin: bytes = b"") -> bytes | None:
        """Run git on the copy."""
        words = [*self.options, *arguments]
        return git.run(self.root, *words, variables=self.variables, stdin=stdin)

    def changed(self) -> list[str]:
        """Return the tracked files that are not as in the index, whatever its flags are."""
        entries = git.names(self.git("ls-files", "-v", "-z"))
        unchanged = [entry[2:] for entry in entries if entry[0].islower()]
        # What a sparse checkout left out is not there by request.
        skipped = [e[2:] for e in entries if e[0] in "sS" and os.path.lexists(self.root / e[2:])]
        for option, names in (("assume-unchanged", unchanged), ("skip-worktree", skipped)):
            if names:
                self.git("update-index", f"--no-{option}", "-z", "--stdin", stdin=_joined(names))
        self.git("update-index", "-q", "--refresh")
        words = ("diff-files", "--name-only", "-z", "--relative", "--ignore-submodules=dirty")
        return list(dict.fromkeys(git.names(self.git(*words))))

    def untracked(self, below: str = "") -> list[str]:
        """Return the files that are not tracked; those of nested repositories are as others."""
        words = ("ls-files", "--others", "--exclude-standard", "-z")
        nested = self.root / below
        listing = git.run(nested, *words, "--cached") if below else self.git(*words)
        found = []
        for name in (below + name for name in git.names(listing)):
            path = self.root / name
            if path.is_dir() and not path.is_symlink():
                found += self.untracked(name.rstrip("/") + "/")
            elif os.path.lexists(path):
                found.append(name)
        return found

    def add(self, names: Sequence[str]) -> list[str]:
        """Put files into the index as they are on disk; return those that git refuses."""
        if not names:
            return []
        words = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")
        if self.git(*words, stdin=_joined(names)) is not None:
            there = set(git.names(self.git("ls-files", "-z")))
            return [n for n in names if n not in there and os.path.lexists(self.root / n)]
        if len(names) == 1:
            return list(names)
        middle = len(names) // 2
        return self.add(names[:middle]) + self.add(names[middle:])

    def submodules(self) -> dict[str, str]:
        """Return the submodules that are there with changes which they have not committed."""
        listing = git.names(self.git("ls-files", "--stage", "-z"))
        paths = [entry.partition("\t")[2] for entry in listing if entry.startswith("160000")]
        return {
            path: "a submodule with changes that are not committed"
            for path in paths
            if (self.root / path / ".git").exists()
            and git.run(self.root / path, "status", "--porcelain") != b""
        }


def _copy(root: Path, folder: Path) -> _Copy | str:
    """Copy the index of the repository that a folder is in; return why there is none."""
    if shutil.which("git") is None:
        return "git is not installed"
    variables = {"GIT_INDEX_FILE": str(folder / "index"), "GIT_OBJECT_DIRECTORY": str(folder)}
    if not _is_tracked(root):
        if not (root / "pyproject.toml").is_file():
            return "it is no checkout of the project"
        bare = str(folder / "repository")
        if git.run(root, "init", "--quiet", "--bare", "--template=", bare) is None:
            return "git cannot make a repository for the patch"
        variables |= {"GIT_DIR": bare, "GIT_WORK_TREE": str(root)}
    commit = git.run(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}",
                     variables={k: v for k, v in variables.items() if k == "GIT_DIR"})  # fmt: skip
    if "GIT_DIR" not in variables:
        index, objects = (_place(root, name) for name in ("index", "objects"))
        if index.is_file():
            shutil.copy2(index, folder / "index")  # with its time: git needs it to find edits
        (folder / "info").mkdir()
        (folder / "info" / "alternates").write_bytes(os.fsencode(objects) + b"\n")
    made = _Copy(root, variables, git.optional_filters(root), None, "")
    empty = (made.git("hash-object", "-t", "tree", "--stdin") or b"").decode().strip()
    if commit is None:
        return _Copy(root, variables, made.options, None, empty)
    name = commit.decode().strip()
    return _Copy(root, variables, made.options, name, name)


def _is_tracked(root: Path) -> bool:
    """Return whether a folder is a work tree of git's, and not just below one that ignores it."""
    if git.run(root, "rev-parse", "--is-inside-work-tree") != b"true\n":
        return False
    return git.run(root, "rev-parse", "--show-prefix") == b"\n" or bool(
        git.run(root, "ls-files", "-z")
    )


def _place(root: Path, name: str) -> Path:
    place = git.run(root, "rev-parse", "--git-path", name) or b""
    return (root / os.fsdecode(place.removesuffix(b"\n"))).resolve()


def _choose(
    root: Path, tracked: Sequence[str], untracked: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """Return the files for the patch, and those that it lacks because they are too large."""
    runs: dict[Path, bool] = {}
    kept = [name for name in (*tracked, *untracked) if not is_in_run(root, Path(name).parent, runs)]
    first = set(tracked)
    sizes = {name: _size(root / name) for name in kept}
    chosen, lacks, total = [], {}, 0
    for name in sorted(kept, key=lambda n: (n not in first, not n.endswith(".py"), sizes[n], n)):
        total += sizes[name]
        large = name not in first and sizes[name] > MAX_UNTRACKED_BYTES
        if large or total > MAX_PATCHED_BYTES:
            total -= sizes[name]
            lacks[name] = _too_large(root, name, sizes[name])
        else:
            chosen.append(name)
    return chosen, lacks


def _too_large(root: Path, name: str, size: int) -> str:
    """Return the size of a file, and a digest of its content if code may read it."""
    try:
        return described(root / name) if name.startswith("src/") else f"{size} bytes"
    except OSError:
        return f"{size} bytes"


def _grouped(lacks: dict[str, str]) -> dict[str, str]:
    """Name folders instead of many files in them."""
    count = Counter(os.path.dirname(name) for name in lacks)
    found = {}
    for name, reason in sorted(lacks.items()):
        folder = os.path.dirname(name)
        many = count[folder] > _MOST_NAMED
        key = git.printable(f"{folder or '.'}/" if many else name)
        found[key] = f"{count[folder]} files" if many else reason
    return found


def _joined(names: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def _size(path: Path) -> int:
    try:
        status = path.lstat()
    except OSError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
