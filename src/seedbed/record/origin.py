"""Under what a checkpoint or a run was made, and what has changed since.

A checkpoint holds its origin: settings, environment and code. Whoever resumes from it compares that
with what is in force now. The record describes the process that works on it, or did so last;
`resumes` in summary.json lists what each resume changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import neutral, source

_LACKS = "git.lacks."


@dataclass(frozen=True)
class Change:
    """A setting, an entry of the environment or a file that is not the same in two origins.

    Attributes:
        before, now: its two values; None where it is absent.
        kind: configuration, environment or code.
    """

    key: str
    before: Any
    now: Any
    alters_bits: bool
    kind: str = "configuration"

    def __str__(self) -> str:
        return f"{self.key} {self.before} -> {self.now}"


@dataclass(frozen=True)
class Origin:
    """Under what a checkpoint is made.

    Attributes:
        settings: the configuration.
        environment: what environment.json holds.
        patched: blob id by path, of the files that the uncommitted patch changes.
    """

    settings: dict[str, Any]
    environment: dict[str, Any]
    patched: dict[str, str]


def changes(before: Origin, now: Origin) -> list[Change]:
    """Return what differs in configuration, environment and code, in this order."""
    settings = record.flatten(before.settings), record.flatten(now.settings)
    environments = _environment(before), _environment(now)
    return [
        *_differing(*settings, "configuration", neutral.KEYS),
        *_differing(*environments, "environment", neutral.ENVIRONMENT),
        *_code_changes(before, now),
    ]


def require_unfinished(folder: Path) -> dict[str, Any]:
    """Return the summary of a run that can be resumed: {} if it was killed before it wrote one.

    Raises:
        InputError: the run finished.
    """
    if not (folder / "summary.json").exists():
        return {}
    summary = record.read_summary(folder)
    if summary.get("status") == "finished":
        raise InputError(
            f"{folder}: expected a run to resume, got one that finished; start another by "
            "train.py, or repeat this one by scripts/verify.py"
        )
    return summary


def _differing(
    before: Mapping[str, Any], now: Mapping[str, Any], kind: str, harmless: Sequence[str] = ()
) -> Iterator[Change]:
    for key in sorted(before.keys() | now.keys()):
        if before.get(key) != now.get(key):
            alters_bits = not neutral.matches(key, harmless)
            yield Change(key, before.get(key), now.get(key), alters_bits, kind)


def _environment(origin: Origin) -> dict[str, Any]:
    """Leave out what git and torchrun add, and of the platform all but the C library."""
    kept = {key: value for key, value in origin.environment.items() if key != "git"}
    kept["platform"] = str(kept.get("platform")).rpartition("-with-")[2]
    flat = record.flatten(kept)
    return {key: flat[key] for key in flat if not neutral.matches(key, neutral.TORCHRUN)}


def _code_changes(before: Origin, now: Origin) -> Iterator[Change]:
    """Yield the commit, which alone alters bits if git does not know it, and files that differ."""
    commits = [origin.environment["git"]["commit"] for origin in (before, now)]
    trees = [_files(origin) for origin in (before, now)]
    if commits[0] != commits[1]:
        yield Change("git.commit", commits[0], commits[1], None in trees, "code")
    if trees[0] is not None and trees[1] is not None:
        for change in _differing(trees[0], trees[1], "code"):
            yield replace(change, alters_bits=neutral.may_be_imported(change.key))
    known = {path for tree in trees for path in tree or ()}
    for change in _differing(_lacking(before), _lacking(now), "code"):
        path = change.key.removeprefix(_LACKS)
        yield replace(change, alters_bits=neutral.may_be_imported(path) or path in known)


def _files(origin: Origin) -> dict[str, str] | None:
    """Return the short blob id of each file of the code; None if git does not have the commit."""
    commit = origin.environment["git"]["commit"]
    found = source.recorded_files(source.project_root(), commit, origin.patched)
    return None if found is None else {path: blob[:12] for path, blob in found.items()}


def _lacking(origin: Origin) -> dict[str, str]:
    """Return what the record says of code that it lacks, by path."""
    lacks = origin.environment["git"].get("lacks") or {}
    return {f"{_LACKS}{path}": reason for path, reason in lacks.items()}
