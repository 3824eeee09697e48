"""Under what runs of sweeps were made: where code or machine differ, other bits are no surprise."""

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import blobs, origin, untrusted
from seedbed.record.change import Change
from seedbed.record.origin import Origin
from seedbed.sweeps.groups import Run


def read(run: Run) -> str:
    """Return a run's environment and code, also that of its resumes, as JSON; "" if unknown."""
    try:
        environment = record.read_json(run.folder / "environment.json")
        patch = untrusted.read_bytes(run.folder / "source.patch", untrusted.MAX_PATCH_BYTES)
    except (InputError, OSError):
        return ""
    altered = record.altered(run.summary)
    if altered:
        environment["resumed_with"] = repr(altered)
    return json.dumps([environment, blobs.patched_files(patch)])


def differences(first: Run, second: Run) -> Sequence[Change]:
    """Return what of environment and code differs between two runs and can alter bits."""
    before, now = read(first), read(second)
    return _differences(before, now) if before and now and before != now else ()


@lru_cache(maxsize=64)  # git is asked, and most runs of a sweep are alike
def _differences(before: str, now: str) -> Sequence[Change]:
    origins = [Origin({}, *json.loads(text)) for text in (before, now)]
    try:
        return [change for change in origin.changes(*origins) if change.alters_bits]
    except (AttributeError, KeyError, TypeError):  # a record that others wrote
        return ()


def alike(runs: Iterable[Run]) -> list[list[Run]]:
    """Return the runs in lists of those that were made by the same code on like machines."""
    classes: list[list[Run]] = []
    for run in runs:
        same = next((each for each in classes if not differences(each[0], run)), None)
        if same is None:
            classes.append([run])
        else:
            same.append(run)
    return classes


def between(pairs: Sequence[tuple[Run, Run]]) -> list[Change]:
    """Return what differs in any of some pairs of runs, each key once."""
    found: dict[str, Change] = {}
    for pair in pairs:
        for change in differences(*pair):
            found.setdefault(change.key, change)
    return list(found.values())
