"""The code of a run: code.zip in its folder, digests in environment.json, what git says of it.

code.zip holds the files that the training process imported from outside the standard library and
site-packages. Those of the project are named by their paths in it; those from elsewhere lie below
ELSEWHERE by their import paths. The entry PYTHONPATH lists where Python finds them, so that
`unzip code.zip && PYTHONPATH=$(cat PYTHONPATH) python` imports this code.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from seedbed import project
from seedbed.errors import InputError
from seedbed.record import archive, untrusted
from seedbed.record.change import Change

ARCHIVE = "code.zip"
PATH = "PYTHONPATH"
ELSEWHERE = "elsewhere"
_SHORT = 12  # digits of a digest that are shown
_DIFF = ("diff", "HEAD", "--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")


@dataclass(frozen=True)
class Code:
    """What a record knows of the code that ran.

    Attributes:
        commit: None where the code was in no repository.
        imported: SHA-256 by name in code.zip, of the files that the training process imported;
            None if the record does not say. Records of earlier versions have git's blob ids.
        archive: the record's code.zip; None if it has none.
    """

    commit: str | None
    imported: Mapping[str, str] | None = None
    archive: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, environment: Mapping[str, Any], folder: Path | None = None) -> "Code":
        """Return what environment.json, which may come from a stranger, says of the code."""
        git, files = environment.get("git"), environment.get("imported_files")
        commit = git.get("commit") if isinstance(git, Mapping) else None
        imported = None
        if isinstance(files, Mapping) and files:
            imported = {name: str(files[name]) for name in files if archive.is_inside(name)}
        path = folder / ARCHIVE if folder is not None else None
        kept = path if path is not None and path.is_file() else None
        return cls(None if commit is None else str(commit), imported, kept)

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The content of the files in code.zip, by name; {} without one."""
        return {} if self.archive is None else archive.read(self.archive)

    def digest(self, name: str) -> str | None:
        """Return the digest of a file, also of one that is kept but was not imported."""
        known = (self.imported or {}).get(name)
        return known or (sha256(self.files[name]) if name in self.files else None)


def sha256(content: bytes) -> str:
    """Return a digest in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def changes(before: Code, now: Code, same_settings: bool = False) -> Iterator[Change]:
    """Yield the commit and the imported files that differ.

    A file that only one of them has imported can follow from the settings, such as another model's:
    it is no change of the code, unless the settings are the same.
    """
    files = [each.imported for each in (before, now)]
    known = files[0] is not None and files[1] is not None and _kind(files[0]) == _kind(files[1])
    if before.commit != now.commit:
        yield Change("git.commit", before.commit, now.commit, not known, "code")
    if not known:
        return
    a, b = (each or {} for each in files)
    shared = [name for name in a if name in b and a[name] != b[name]]
    single = a.keys() ^ b.keys() if same_settings or shared else ()
    for name in sorted([*shared, *single]):
        one, other = before.digest(name), now.digest(name)
        if one != other:
            yield Change(name, one and one[:_SHORT], other and other[:_SHORT], kind="code")


def _kind(digests: Mapping[str, str]) -> set[int]:
    return {len(digest) for digest in digests.values()}


def is_same(before: Code, now: Code) -> bool:
    """Return whether no file that both imported differs."""
    return not any(change.alters_bits for change in changes(before, now))


def texts(code: Code, names: Iterable[str]) -> dict[str, str]:
    """Return what some files in code.zip held, without those that it lacks."""
    files = code.files
    return {name: files[name].decode(errors="replace") for name in names if name in files}


def places(files: Mapping[str, bytes]) -> list[str]:
    """Return the entries of PYTHONPATH, relative to the folder of a code.zip that was extracted."""
    named = files.get(PATH, b"").decode(errors="replace").strip().split(os.pathsep)
    return [place for place in named if place == "." or archive.is_inside(place)]


def digest_here(name: str, root: Path | None = None) -> str | None:
    """Return the digest of what this process would import under a name; None if there is none."""
    places = [(root or project.root()) / name]
    if name.startswith(f"{ELSEWHERE}/"):
        path = os.environ.get(PATH, "").split(os.pathsep) + sys.path
        places += [Path(place, name.removeprefix(f"{ELSEWHERE}/")) for place in path if place]
    for place in places:
        with suppress(OSError, InputError):
            return sha256(untrusted.read_bytes(place, archive.MAX_CODE_BYTES))
    return None


def changed_here(code: Code) -> list[str]:
    """Return the imported files of a record that are not the same here."""
    imported = code.imported or {}
    if _kind(imported) != {64}:
        return []
    return [name for name, digest in imported.items() if digest_here(name) != digest]


def git_state(root: Path) -> tuple[dict[str, Any], bytes]:
    """Return what git says of a folder, and the output of `git diff HEAD`, for people.

    Returns:
        {"commit", "dirty"}, None each where git does not track the folder, and the patch.
    """
    # The second name fails where the folder is below a repository that does not have it.
    named = _git(root, "rev-parse", "HEAD", "HEAD:./")
    if named is None:
        return {"commit": None, "dirty": None}, b""
    patch = _git(root, *_DIFF)
    return {"commit": named.split()[0].decode(), "dirty": patch != b""}, patch or b""


def _git(root: Path, *arguments: str) -> bytes | None:
    """Return what git prints in a folder; None if it fails or is not installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-c", f"safe.directory={root}", "-c", "core.fsmonitor=false", *arguments]
    environment = kept | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
