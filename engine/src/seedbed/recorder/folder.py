"""The run folder of a loop of one's own: begun, or taken up again after a step."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError
from seedbed.loading import process_group
from seedbed.record import Origin, untrusted
from seedbed.record.code import Code
from seedbed.worker import environment, restore
from seedbed.worker.imports import Imports, completed


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


def script_folder() -> Path:
    """Return the folder of the script that runs, from which the record names its code."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    is_script = script is not None and script.endswith(".py") and "site-packages" not in script
    return Path(script).resolve().parent if is_script and script else Path.cwd()


def describe(device: torch.device, git: Mapping[str, Any]) -> dict[str, Any]:
    """Return environment.json; to be called when the loop has imported what it uses."""
    what, (_, count) = environment.describe(device), process_group()
    return what | {
        "versions": what["versions"] | environment.more_versions({}),
        "processes": {"count": count, "bits_depend_on_count": count if count > 1 else None},
        "git": git,
        "data_sha256": None,
        "files_sha256": {},
    }


def write(
    folder: Path, config: str, imports: Imports, patch: bytes, resumed_from: int | None
) -> dict[str, Any] | None:
    """Write configuration, environment, code and patch.

    Returns:
        For summary.json, what has changed since the loop was left; None if it just begins.
    """
    entry = None
    imports.look()
    if resumed_from is not None and (folder / "environment.json").exists():
        recorded = {"imported_files": {}, **record.read_json(folder / "environment.json")}
        before = Origin(_settings(folder), recorded, Code.of(recorded, folder))
        record.write_atomically(folder / "config.yaml", config)
        now = completed(before, Origin(_settings(folder), imports.environment))
        changes = record.changes(before, now)
        entry = restore.entry(resumed_from, changes)
        restore.keep_code(folder, resumed_from, changes)
        imports.resume(recorded["imported_files"])
    imports.write(patch)
    return entry


def _settings(folder: Path) -> dict[str, Any]:
    return OmegaConf.to_container(record.read_config(folder))  # type: ignore[return-value]
