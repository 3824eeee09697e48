"""The run folder of a loop of one's own: begun, or taken up again after a step."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError
from seedbed.loading import process_group
from seedbed.record import blobs, git, origin, source, untrusted
from seedbed.record.origin import Origin
from seedbed.worker import environment, loaded, restore


@dataclass(frozen=True)
class Code:
    """The code of the process: its checkout's root, and what `source.snapshot` found there."""

    root: Path
    state: dict[str, Any]
    patch: bytes


def create(folder: Path) -> None:
    """Create a run folder.

    Raises:
        InputError: it holds a record, or cannot be written.
    """
    there = [name for name in record.FILES if (folder / name).exists()]
    if there:
        raise InputError(
            f"folder: expected a new one, got {folder} with {there[0]}; name another, or say after "
            "which step the loop goes on: Recorder(..., resume_from=STEP)"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"folder: expected one that can be created, got {folder} ({error.strerror}); name "
            "another"
        ) from None


def require_resumable(folder: Path) -> dict[str, Any]:
    """Return the summary of a record that a loop may go on with.

    Raises:
        InputError: there is none, or it is that of train.py.
    """
    record.require_run(folder)
    if "recorder" not in record.read_config(folder):
        raise InputError(
            f"folder: expected the record of a Recorder, got {folder}, a run of train.py; resume "
            "it with scripts/resume.py"
        )
    untrusted.require_no_way_out(folder)
    return record.read_summary(folder)


def code() -> Code:
    """Return the code that runs: the repository of the script, or of the current folder."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    is_script = script is not None and script.endswith(".py") and "site-packages" not in script
    place = Path(script).resolve().parent if is_script and script else Path.cwd()
    top = git.run(place, "rev-parse", "--show-toplevel")
    if not top:
        return Code(
            place, {"commit": None, "dirty": None, "lacks": {".": "no git repository"}}, b""
        )
    root = Path(os.fsdecode(top.removesuffix(b"\n")))
    return Code(root, *source.snapshot(root))


def describe(device: torch.device, found: Code) -> dict[str, Any]:
    """Return environment.json; to be called when the loop has imported what it uses."""
    patched = blobs.patched_files(found.patch)
    recorded = blobs.recorded_files(found.root, found.state["commit"], patched) or {}
    lacks = found.state["lacks"] | loaded.unrecorded(recorded, {}, found.root)
    dirty = None if found.state["dirty"] is None else bool(found.patch or lacks)
    what, (_, count) = environment.describe(device), process_group()
    return what | {
        "versions": what["versions"] | loaded.more_versions({}, found.root),
        "processes": {"count": count, "bits_depend_on_count": count if count > 1 else None},
        "git": found.state | {"dirty": dirty, "lacks": lacks},
        "data_sha256": None,
        "files_sha256": {},
    }


def write(
    folder: Path, config: str, found: Mapping[str, Any], patch: bytes, resumed_from: int | None
) -> dict[str, Any] | None:
    """Write configuration, environment and patch.

    Returns:
        For summary.json, what has changed since the loop was left; None if it just begins.
    """
    entry = None
    if resumed_from is not None and (folder / "environment.json").exists():
        before, old = _read(folder)
        record.write_atomically(folder / "config.yaml", config)
        now = Origin(_settings(folder), dict(found), blobs.patched_files(patch))
        entry = restore.entry(resumed_from, origin.changes(before, now))
        kept = folder / f"source_until_step_{resumed_from}.patch"
        if old != patch and not kept.exists():
            record.write_atomically(kept, old)
    record.write_environment(folder, found, patch)
    return entry


def _read(folder: Path) -> tuple[Origin, bytes]:
    patch = untrusted.read_bytes(folder / "source.patch", untrusted.MAX_PATCH_BYTES)
    found = record.read_json(folder / "environment.json")
    return Origin(_settings(folder), found, blobs.patched_files(patch)), patch


def _settings(folder: Path) -> dict[str, Any]:
    return OmegaConf.to_container(record.read_config(folder))  # type: ignore[return-value]
