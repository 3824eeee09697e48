"""Run folders: created for a new run, or those of a run that is asked for again."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed import record
from seedbed.config import Settings, interpolations
from seedbed.errors import InputError
from seedbed.record import (
    LENGTHS,
    Origin,
    code,
    files,
    mark,
    observers,
    text,
    untrusted,
)

# Settings of how a run is executed, which may differ when its command is given again.
_EXECUTION = ("data.", "trainer.", "fingerprint.")
# Environment variable of a sweep's jobs: the name of the list of files they were
# submitted with.
SUBMISSION = "SEEDBED_SUBMISSION"


def create_run_folder(
    folder: Path,
    settings: Settings,
    templates: Mapping[str, str] = {},
    is_own: bool = True,
) -> None:
    """Create the run folder and its config.yaml; raise InputError unless the folder is
    unused.

    With `templates`, of `interpolations.templates_of`, it can be overridden later as
    when composed. Settings that are not this checkout's own, such as those of a replay,
    get no mark.
    """
    content = require_readable(settings, templates)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record.require_free(folder)  # of an equal command, given at the same time
        _require_unused(folder)  # first, so that no lock file is left in a used folder
        with record.lock(folder):  # of two runs, it refuses the second
            _require_unused(folder)
            # of a run that failed early; see below for its summary
            for name in record.FILES:
                if name not in ("config.yaml", "summary.json", "checkpoints"):
                    (folder / name).unlink(missing_ok=True)
            if templates:
                record.write_json(folder / interpolations.FILE, templates)
            record.write_atomically(folder / "config.yaml", content)
            if is_own:
                mark.write(folder)
            # Last: a folder without a summary belongs to this run. Before, it is free
            # for others, also if this process is killed.
            (folder / "summary.json").unlink(missing_ok=True)
    except OSError as error:
        raise InputError(
            "hydra.run.dir: expected a folder that can be written, got"
            f" {error.strerror} for {folder}"
        ) from None


def require_readable(settings: Settings, templates: Mapping[str, str] = {}) -> str:
    """Return config.yaml of a run; raise InputError if no command could read its record
    again."""
    content = OmegaConf.to_yaml(settings.plain)
    try:
        untrusted.parse_yaml(content)
        interpolations.require_valid(templates)
        return content
    except ValueError as error:
        raise InputError(
            f"configuration: expected values that a record can hold, got {error}; put"
            " large ones in a file, and name the file"
        ) from None


def _require_unused(folder: Path) -> None:
    """Raise InputError unless a folder is empty, or its run failed before it recorded a
    step."""
    # Launchers may have started train.log; a run that was killed may have left
    # dotfiles.
    early = ("train.log", interpolations.FILE)
    there = [n for n in sorted(os.listdir(folder)) if n[0] != "." and n not in early]
    if there and not _failed_early(folder):
        raise InputError(
            f"hydra.run.dir: expected a new or empty folder, got {folder}, which holds"
            f" {there[0]}; choose another"
        )


def _failed_early(folder: Path) -> bool:
    if record.is_run(folder) and not any((folder / "checkpoints").glob("*.pt")):
        with suppress(InputError):  # damaged
            summary = record.read_summary(folder)
            return summary.get("status") == "failed" and not summary.get("steps")
    return False


def rerun_overrides(settings: Settings, folder: Path, key: str) -> dict[str, Any]:
    """Return the values with which a begun run is resumed by its own command, such as
    workers.

    Raise InputError if `settings` ask for other bits than the run's.
    """
    recorded = untrusted.read_dict(folder)
    requested = settings.plain
    counts = requested["data"].get("stream_lengths") is None  # a run fills them in
    values: dict[str, Any] = {}
    changes = record.changes(Origin(recorded, {}), Origin(requested, {}))
    if recorded.get("claim") != requested.get("claim"):
        raise InputError(
            f"claim: expected {text.show(recorded.get('claim'))} as in {folder}, got"
            f" {text.show(requested.get('claim'))}: a run counts only for the claim"
            f" that it began with; choose another {key}"
        )
    # Environment variables of a preset follow from its other keys.
    for change in sorted(changes, key=lambda each: ".env." in each.key):
        if not change.alters_bits:
            values |= (
                {change.key: change.now} if change.key.startswith(_EXECUTION) else {}
            )
        elif not (counts and change.key.startswith("data.stream_lengths")):
            got = f"expected {change.before} as in {folder}, got {change.now}"
            if change.key in LENGTHS and is_finished(folder):
                asked = f"{change.key}={text.show(change.now)}"
                raise InputError(
                    f"{change.key}: {got}; to extend the run:"
                    f" {text.resume_command(folder)} {asked}"
                )
            raise InputError(f"{change.key}: {got}; undo that, or choose another {key}")
    # The classes to build are those of the command: the folder may come from somebody
    # else.
    for section in ("callbacks", "logger"):
        if recorded.get(section) != requested[section]:
            values[section] = requested[section]
    return values


def is_begun(folder: Path) -> bool:
    """Return whether a folder has a run that did not fail before it recorded a step."""
    return (folder / "config.yaml").exists() and not _failed_early(folder)


def is_finished(folder: Path) -> bool:
    return (
        record.is_run(folder)
        and record.read_summary(folder).get("status") == "finished"
    )


def require_submitted(run: Path, digests: Mapping[str, str]) -> None:
    """Raise InputError if a file that a new job of a sweep uses is not as when it was
    submitted.

    A launcher may start jobs days later, after edits. `digests` are SHA-256 by names in
    code.zip.
    """
    sweep = next(filter(record.is_sweep, run.absolute().parents), None)
    if SUBMISSION not in os.environ or sweep is None:  # no job of a sweep
        return
    submissions = record.read_json(sweep / record.SWEEP).get("submissions")
    lists: dict[str, dict[str, str]] = (
        submissions if isinstance(submissions, dict) else {}
    )
    newest = next(reversed(lists.values()), {})  # there is none of an earlier version
    submitted = lists.get(os.environ[SUBMISSION], newest)
    for name in sorted(digests):
        if submitted.get(name, digests[name]) != digests[name]:
            raise InputError(
                f"{name}: expected the file with which {sweep} was submitted, got an"
                " edited one; undo that, or repeat the sweep's command to train the"
                " rest with it"
            )


def changed_since(*runs: Path) -> list[str]:
    """Return the files of code and data that have changed since finished runs.

    Code of callbacks and loggers alone is left out: a run has the same bits with
    another.
    """
    origins = [Origin({}, record.read_environment(run), run) for run in runs]
    known = {
        k: v
        for of in origins
        for k, v in of.environment.get("files_sha256", {}).items()
    }
    names = code.changed_here(*origins)
    if names:
        settings = map(untrusted.read_dict, runs)
        with_settings = [
            replace(a, settings=b) for a, b in zip(origins, settings, strict=True)
        ]
        of_observers = observers.observing(names, *with_settings)
        names = [name for name in names if name not in of_observers]
    return names + files.changed(known)
