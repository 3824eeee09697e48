"""Under what a checkpoint or a run was made, and what has changed since.

A checkpoint holds its origin: settings, environment and code. Whoever resumes from it compares that
with what is in force now. The record describes the process that works on it, or did so last;
`resumes` in summary.json lists what each resume changed.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import code
from seedbed.record.change import (
    NEUTRAL_ENVIRONMENT,
    NEUTRAL_KEYS,
    TORCHRUN,
    Change,
    matches,
)
from seedbed.record.code import Code


@dataclass(frozen=True)
class Origin:
    """Under what a checkpoint is made.

    Attributes:
        settings: the configuration.
        environment: what environment.json holds.
    """

    settings: dict[str, Any]
    environment: dict[str, Any]


def changes(before: Origin, now: Origin, folder: Path | None = None) -> list[Change]:
    """Return what differs in configuration, environment and code, in this order.

    Args:
        folder: that of the run which `before` is of, for its code.zip.
    """
    settings = record.flatten(before.settings), record.flatten(now.settings)
    environments = _environment(before), _environment(now)
    return [
        *_differing(*settings, "configuration", NEUTRAL_KEYS),
        *_differing(*environments, "environment", NEUTRAL_ENVIRONMENT),
        *code.changes(
            Code.of(before.environment, folder),
            Code.of(now.environment),
            bool(before.settings) and before.settings == now.settings,
        ),
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
            alters_bits = not matches(key, harmless)
            yield Change(key, before.get(key), now.get(key), alters_bits, kind)


def _environment(origin: Origin) -> dict[str, Any]:
    """Leave out what git and torchrun add, and of the platform all but the C library."""
    apart = ("git", "imported_files")
    kept = {key: value for key, value in origin.environment.items() if key not in apart}
    kept["platform"] = str(kept.get("platform")).rpartition("-with-")[2]
    flat = record.flatten(kept)
    return {key: flat[key] for key in flat if not matches(key, TORCHRUN)}
