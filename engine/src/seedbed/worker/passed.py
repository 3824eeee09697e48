"""Rehearsals that were passed: one serves all runs of equal code and settings, seeds aside."""

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path

from seedbed import project, record
from seedbed.errors import InputError
from seedbed.names import flatten
from seedbed.record import Origin, change, code, untrusted
from seedbed.worker import environment
from seedbed.worker.job import Job

_FOLDER = ".seedbed/rehearsed"  # in the project
# Settings that a rehearsal does not depend on, although they may alter bits.
_SEEDS = ("seed", "seeds.*", "*.seed")


def before(job: Job) -> bool:
    """Return whether a rehearsal of these settings passed, with the code that is here now."""
    with suppress(OSError, InputError):
        kept = untrusted.read_json(_place(job))
        return not code.changed_here(Origin({}, kept))
    return False


def remember(job: Job, imported: dict[str, str]) -> None:
    """Note that a run has repeated its rehearsal, and the digests of the files it imported."""
    path = _place(job)
    with suppress(OSError):  # the project's folder is read-only
        path.parent.mkdir(parents=True, exist_ok=True)
        record.write_json(path, {"imported_files": imported})


def _place(job: Job) -> Path:
    """Return the file of these settings, processor and versions."""
    settings = flatten(untrusted.read_dict(job.folder))
    neutral = [key for key in change.NEUTRAL_KEYS if not key.startswith(("data.", "callbacks."))]
    aside = (*neutral, *_SEEDS)
    own = {key: value for key, value in settings.items() if not change.matches(key, aside)}
    versions = {name: environment.version(name) for name in environment.CORE.values()}
    parts = [own, versions, environment.cpu(), os.environ.get("WORLD_SIZE")]
    digest = hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()
    return project.root() / _FOLDER / f"{digest[:32]}.json"
