"""The origin of a run: settings, environment, and its code in code.zip.

Project files are stored by their path in the project; files imported from outside the
project and its src/, by their import path below ELSEWHERE. The entry PYTHONPATH lists
these three folders, so that `unzip code.zip && PYTHONPATH=$(cat PYTHONPATH) python`
imports this code.
"""

import difflib
import hashlib
import importlib.util
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from seedbed import project
from seedbed.errors import InputError
from seedbed.names import flatten
from seedbed.record import untrusted

ARCHIVE = "code.zip"
PATH = "PYTHONPATH"
ELSEWHERE = "elsewhere"
_NOT_OF_RUNS = ("engine/", "kernels/", "scripts/", "tests/", "docs/")
PLACES = ("src", ".", ELSEWHERE)
ENGINE = ("seedbed", "torch_deterministic_kernels")  # packages
_ENGINE_FOLDERS = tuple(f"{ELSEWHERE}/{package}/" for package in ENGINE)
PATH_ENTRY = f"{os.pathsep.join(PLACES)}\n".encode()  # the content of PATH


@dataclass(frozen=True)
class Origin:
    """The settings, environment and code of a checkpoint or a record, which may be
    untrusted."""

    settings: Mapping[str, Any]
    environment: Mapping[str, Any]  # the content of environment.json
    folder: Path | None = None  # of the record, if any

    @property
    def commit(self) -> str | None:
        commit: str | None = flatten(self.environment).get("git.commit")
        return commit

    @property
    def imported(self) -> Mapping[str, str]:
        """SHA-256 of each file that the training process imported, by its name in
        code.zip."""
        files = self.environment.get("imported_files")
        files = files if isinstance(files, Mapping) else {}
        return {name: str(files[name]) for name in files if untrusted.is_inside(name)}

    @property
    def archive(self) -> Path | None:
        path = self.folder and self.folder / ARCHIVE
        return path if path and path.is_file() else None

    @cached_property
    def files(self) -> Mapping[str, bytes]:
        """The content of the files in code.zip, by name; {} if there is none."""
        return {} if self.archive is None else untrusted.read_zip(self.archive)

    def digest(self, name: str) -> str | None:
        """Return the digest of a file that was imported, or is in code.zip; None
        otherwise."""
        known = self.imported.get(name)
        return known or (sha256(self.files[name]) if name in self.files else None)

    def unlike_archive(self) -> str | None:
        """Return the first file of code.zip that is not the one that was imported, or
        None."""
        # Beside those it has the engine's other modules. Large files are recorded by
        # digest alone.
        expected = {PATH: sha256(PATH_ENTRY), **self.imported}
        for name in sorted(self.files) if self.imported else ():
            digest = expected.get(name)
            is_other = digest is None and not name.startswith(_ENGINE_FOLDERS)
            if is_other or digest not in (None, sha256(self.files[name])):
                return name
        return None


@dataclass(frozen=True)
class Tree:
    """Code that training processes import: this checkout, or a record's, extracted from
    it."""

    root: Path = field(default_factory=project.root)  # of the project
    # environment variables to import it
    variables: dict[str, str] = field(default_factory=dict)
    is_recorded: bool = False


@contextmanager
def code_of(origin: Origin, wanted: bool) -> Iterator[Tree]:
    """Yield the code to replay a run with: its code.zip if `wanted`, else this
    checkout."""
    if not wanted:
        yield Tree()
        return
    if origin.archive is None:
        raise InputError(
            f"{origin.folder}: expected {ARCHIVE}, got none; replay without"
            " --restore-code"
        )
    if (name := origin.unlike_archive()) is not None:
        raise InputError(
            f"{origin.archive}: expected the files in imported_files of"
            f" environment.json, got another {name}; replay with code that you have:"
            " without --restore-code"
        )
    with TemporaryDirectory(prefix="seedbed-code-") as folder:
        root = Path(folder).resolve()
        untrusted.extract_zip(origin.archive, root)
        path = os.pathsep.join(str(root / source_folder) for source_folder in PLACES)
        variables = {PATH: path, "PYTHONSAFEPATH": "1", project.PROJECT: str(root)}
        yield Tree(root, variables, is_recorded=True)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def diff(a: Origin, b: Origin, names: Iterable[str]) -> Iterator[str]:
    """Yield a unified diff of the named files in the code.zip of two records."""
    for name in names:
        sides = [each.files.get(name) for each in (a, b)]
        one, other = ("(none)" if side is None else name for side in sides)
        lines_a, lines_b = (
            (side or b"").decode(errors="replace").splitlines() for side in sides
        )
        yield from difflib.unified_diff(
            lines_a, lines_b, f"A/{one}", f"B/{other}", lineterm=""
        )


def read_here(name: str, root: Path | None = None) -> bytes | None:
    """Return the content that this process would import for a name in code.zip, or
    None."""
    paths = [(root or project.root()) / name]
    if name.startswith(f"{ELSEWHERE}/"):
        paths += [Path(entry, name.removeprefix(f"{ELSEWHERE}/")) for entry in sys.path]
    for path in paths:
        with suppress(OSError, InputError):
            return untrusted.read_bytes(path, untrusted.MAX_CODE_BYTES)
    return None


def engine_files() -> dict[str, Path]:
    """Return the modules of the engine and its kernels by their names in code.zip.

    Those of a package that is installed are left out.
    """
    paths = dict[str, Path]()
    for package in ENGINE:
        spec = importlib.util.find_spec(package)
        file = spec and spec.origin
        if file and not project.is_installed(file):
            folder = Path(file).resolve().parent
            for path in folder.rglob("*.py"):
                paths[f"{ELSEWHERE}/{path.relative_to(folder.parent).as_posix()}"] = (
                    path
                )
    return paths


def digests_of_project(
    root: Path | None = None, names: Iterable[str] = ()
) -> dict[str, str]:
    """Return the SHA-256 of each file of code and configuration that a run started now
    may read.

    They are those of the project, here or in another folder, what `names` has beside
    them (`tracked`), and those of an engine that is not installed, by names as in
    code.zip.
    """
    root = root or project.root()
    configs = root / "configs"
    project_files = [
        *root.glob("*.py"),
        *(root / "src").rglob("*.py"),
        *configs.rglob("*.yaml"),
    ]
    project_files += [root / name for name in names if (root / name).is_file()]
    paths = {
        path.relative_to(root).as_posix(): path for path in project_files
    } | engine_files()
    return {name: sha256(paths[name].read_bytes()) for name in sorted(paths)}


def tracked(root: Path, commit: str | None = None) -> list[str]:
    """Return the names of code and configuration that git tracks, in a commit or in
    the checkout; without git, none.

    The engine, commands, docs and tests are left out, as no run imports them.
    """
    words: tuple[str, ...] = ("ls-files", "-z")
    if commit is not None:
        words = ("ls-tree", "-rz", "--name-only", commit)
    listed = (_git(root, *words) or b"").decode(errors="surrogateescape").split("\0")
    return [
        name
        for name in listed
        if name.endswith((".py", ".yaml")) and not name.startswith(_NOT_OF_RUNS)
    ]


def changed_here(*origins: Origin) -> list[str]:
    """Return the imported files of records that differ or are missing here."""
    known: dict[str, set[str]] = {}
    for origin in origins:
        for name, digest in origin.imported.items():
            known.setdefault(name, set()).add(digest)
    contents = {name: read_here(name) for name in known}
    return [
        name
        for name, content in contents.items()
        if content is None or known[name] != {sha256(content)}
    ]


def git_state(root: Path) -> tuple[dict[str, Any], bytes]:
    """Return {"commit", "dirty"} of a folder, both None without git, and its `git diff
    HEAD`."""
    # HEAD:./ fails if the folder is inside a repository that does not track it.
    named = _git(root, "rev-parse", "HEAD", "HEAD:./")
    if named is None:
        return {"commit": None, "dirty": None}, b""
    plain = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames")
    patch = _git(root, "diff", "HEAD", *plain, "--", ".") or b""
    others = _git(root, "ls-files", "--others", "--exclude-standard", "*.py", "*.yaml")
    return {"commit": named.split()[0].decode(), "dirty": bool(patch or others)}, patch


def commit_of(root: Path, name: str) -> str:
    """Return the full name of a commit; raise InputError if git does not know it."""
    output = _git(
        root, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"
    )
    if output is None:
        raise InputError(
            f"commit: expected one of the repository in {root}, got {name}; git fetch"
        )
    return output.decode().strip()


def extract_commit(root: Path, commit: str, folder: Path) -> None:
    """Write the code and configuration of a commit into an empty folder.

    Links are left out.
    """
    patterns = [f":(glob)**/*.{suffix}" for suffix in ("py", "yaml")]
    content = _git(root, "archive", "--format=tar", commit, "--", *patterns)
    if content is None:
        raise InputError(f"commit: expected code in {root}, got none in {commit}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            source = archive.extractfile(member) if member.isfile() else None
            if source is not None and untrusted.is_inside(member.name):
                path = folder / member.name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(source.read())


def _git(root: Path, *arguments: str) -> bytes | None:
    """Return the output of git in a folder; None if it fails or is not installed."""
    variables = {
        name: value for name, value in os.environ.items() if not name.startswith("GIT_")
    }
    variables |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    command = [
        "git",
        "-c",
        f"safe.directory={root}",
        "-c",
        "core.fsmonitor=false",
        *arguments,
    ]
    with suppress(OSError):
        done = subprocess.run(
            command, cwd=root, env=variables, capture_output=True, check=False
        )
        return done.stdout if done.returncode == 0 else None
    return None
