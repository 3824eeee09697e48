"""The code of a run as its record has it, compared with that of another without executing any."""

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from seedbed import project
from seedbed.record import blobs, git, neutral
from seedbed.record.change import Change

LACKS = "git.lacks."  # before the path of code that a record lacks
DELETED = "(deleted)"  # instead of the content of a file that a patch deletes
_SHORT = 12  # digits of a blob id that are shown, and compared


@dataclass(frozen=True)
class Code:
    """What a record knows of the code that ran.

    Attributes:
        commit: None where the code was in no repository.
        patched: blob id by path, of the files that the uncommitted patch changes; "" if deleted.
        lacks: what is said of code that neither holds, by path.
        imported: blob id by path, of the files that the training process imported; None if the
            record does not say.
    """

    commit: str | None
    patched: dict[str, str]
    lacks: dict[str, str]
    imported: dict[str, str] | None = None

    @classmethod
    def of(cls, environment: Mapping[str, Any], patched: dict[str, str]) -> "Code":
        """Return what environment.json, which may come from a stranger, says of the code."""
        state = environment.get("git")
        state = state if isinstance(state, Mapping) else {}
        commit, lacks = state.get("commit"), state.get("lacks")
        lacks = lacks if isinstance(lacks, Mapping) else {}
        files = environment.get("imported_files")
        imported = None
        if isinstance(files, Mapping) and files:
            imported = {path: str(files[path]) for path in files if _is_inside(path)}
        return cls(
            None if commit is None else str(commit),
            patched,
            {path: str(reason) for path, reason in lacks.items()},
            imported,
        )


def blob_id(content: bytes, commit: str | None) -> str:
    """Return the id that git gives a file of this content, in the repository of a commit."""
    kind = "sha256" if commit is not None and len(commit) == 64 else "sha1"
    return hashlib.new(kind, b"blob %d\0" % len(content) + content).hexdigest()


def changes(before: Code, now: Code) -> Iterator[Change]:
    """Yield the commit and the files that differ, and which of them can alter bits.

    These are the files that either training process imported. Where a record does not say which
    they were, every file counts that a training process could import, and so does the commit if
    git does not have it.
    """
    files, are_whole = _files(before, now)
    imported = None
    if before.imported is not None and now.imported is not None:
        imported = before.imported.keys() | now.imported.keys()
    if before.commit != now.commit:
        decides = imported is None and not are_whole
        yield Change("git.commit", before.commit, now.commit, decides, "code")
    for path in sorted(files[0].keys() | files[1].keys()):
        blobs = [each.get(path) for each in files]
        if blobs[0] != blobs[1]:
            known = neutral.may_be_imported(path) if imported is None else path in imported
            yield Change(path, blobs[0], blobs[1], known, "code")
    for path in sorted(before.lacks.keys() | now.lacks.keys()):
        reasons = before.lacks.get(path), now.lacks.get(path)
        if reasons[0] != reasons[1] and path not in (imported or ()):
            known = path == "." or neutral.may_be_imported(path)
            known = known or any(path in each for each in files)
            yield Change(f"{LACKS}{path}", reasons[0], reasons[1], known, "code")


def warning(lacks: Mapping[str, str], whose: str = "the record does") -> str | None:
    """Return a line that names the code that a record lacks, and what to do; None if it lacks none.

    Args:
        lacks: as `source.snapshot` returns it.
        whose: the records, and the verb that follows them.
    """
    if not lacks:
        return None
    files = {path: reason for path, reason in lacks.items() if path != "."}
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    if "." in lacks:
        known = f", only digests of {', '.join(list(files)[:3])}{more}" if files else ""
        return (
            f"{whose} not hold the code that ran ({lacks['.']}){known}; keep the code under git, "
            "and later records hold it"
        )
    named = ", ".join(f"{path} ({reason})" for path, reason in list(files.items())[:3])
    return (
        f"{whose} not hold all the code that ran: {named}{more}; add it to git, and later records "
        "hold it"
    )


def is_same(before: Code, now: Code) -> bool:
    """Return whether nothing differs that can alter bits."""
    return not any(change.alters_bits for change in changes(before, now))


def changed_here(code: Code) -> list[str]:
    """Return the imported files of a record that are not the same in this checkout."""
    root, found = project.root(), []
    for path, blob in (code.imported or {}).items():
        try:
            content = (root / path).read_bytes()
        except OSError:
            content = b""
        if blob_id(content, code.commit) != blob:
            found.append(path)
    return found


def texts(code: Code, patch: bytes, paths: Iterable[str]) -> dict[str, bytes] | None:
    """Return what some files held, from git's objects and the patch; nothing is checked out.

    Returns:
        The content by path, without files that were not there; None if git lacks the commit, or
        the patch does not fit it.
    """
    root = project.root()
    if code.commit is not None and not blobs.is_commit(code.commit):
        return None
    with tempfile.TemporaryDirectory(prefix="seedbed-git-") as folder:
        kind = ["--object-format=sha256"] if code.commit and len(code.commit) == 64 else []
        words = ["init", "--quiet", "--bare", "--template=", *kind, folder]
        if git.run(Path(folder), *words) is None:
            return None
        variables, prefix = {"GIT_DIR": folder}, ""
        if code.commit is not None:
            objects = git.run(root, "rev-parse", "--git-path", "objects") or b""
            place = (root / os.fsdecode(objects.removesuffix(b"\n"))).resolve()
            alternates = Path(folder, "objects", "info", "alternates")
            alternates.parent.mkdir(exist_ok=True)
            alternates.write_bytes(os.fsencode(place) + b"\n")
            shown = git.run(root, "rev-parse", "--show-prefix") or b""
            prefix = os.fsdecode(shown.removesuffix(b"\n"))
            if git.run(Path(folder), "read-tree", code.commit, variables=variables) is None:
                return None
        if patch:
            words = ["apply", "--cached", "--whitespace=nowarn", f"--directory={prefix}", "-"]
            if git.run(Path(folder), *words, variables=variables, stdin=patch) is None:
                return None
        read = {
            path: git.run(Path(folder), "cat-file", "blob", f":{prefix}{path}", variables=variables)
            for path in paths
        }
    return {path: content for path, content in read.items() if content is not None}


def _files(before: Code, now: Code) -> tuple[list[dict[str, str]], bool]:
    """Return the blob ids of both, as far as they can be compared, and whether that is all code."""
    root = project.root()
    codes = (before, now)
    trees = [blobs.recorded_files(root, each.commit, each.patched) for each in codes]
    if None not in trees:
        pairs = zip(trees, codes, strict=True)
        return [_short({**(tree or {}), **(each.imported or {})}) for tree, each in pairs], True
    known = [{**each.patched, **(each.imported or {})} for each in codes]
    shared = (known[0].keys() & known[1].keys()) | before.patched.keys() | now.patched.keys()
    return [_short({p: each[p] for p in shared if p in each}) for each in known], False


def _short(blobs: Mapping[str, str]) -> dict[str, str]:
    return {path: blob[:_SHORT] or DELETED for path, blob in blobs.items()}


def _is_inside(path: object) -> bool:
    place = PurePosixPath(str(path))
    return isinstance(path, str) and not place.is_absolute() and ".." not in place.parts
