"""sweep.json, the plan of a sweep: its command, its jobs, when they were added, and
each look.

Intervals hold for a number of seeds that was fixed before anybody looked. So the plan
keeps when jobs were added, and who looked at the results of which runs.
"""

import datetime
import fcntl
import getpass
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seedbed import record


@dataclass(frozen=True)
class Plan:
    """What sweep.json says of jobs and looks, as far as it has the expected types."""

    # overrides by number
    jobs: Mapping[str, Sequence[str]] = field(default_factory=dict)
    varied: Sequence[str] = ()  # keys that differ between jobs
    additions: Sequence[Mapping[str, Any]] = ()  # when, by, jobs
    # when, by, runs, seeds, metric, with, final, additions
    looks: Sequence[Mapping[str, Any]] = ()

    def is_extended(self, jobs: Mapping[str, str]) -> bool:
        """Return whether some of these runs were added after others had been looked at.

        `jobs` has the number of each run's job by its name, "" if it is not in the
        plan. Jobs that were planned before a look and finished later are not added.
        """
        for look in self.looks:
            count = look.get("additions")
            seen = set(_strings(look.get("runs")))
            count = count if isinstance(count, int) else len(self.additions)
            before = self.additions[:count]
            planned = {
                number for entry in before for number in _strings(entry.get("jobs"))
            }
            is_last = count >= len(self.additions)
            new = [job for name, job in jobs.items() if name not in seen]
            added = [job for job in new if not job or not (is_last or job in planned)]
            if added and len(new) < len(jobs):
                return True
        return False


def read_plan(folder: Path) -> Plan | None:
    """Read the plan of a sweep; None if its folder has none. Raises InputError if it is
    damaged."""
    if not record.is_sweep(folder):
        return None
    entries = record.read_json(folder / record.SWEEP)
    return Plan(
        {number: _strings(job) for number, job in _jobs(entries).items()},
        _strings(entries.get("varied")),
        _entries(entries.get("additions")),
        _entries(entries.get("looks")),
    )


def begin(folder: Path, entries: Mapping[str, Any]) -> None:
    """Write what a sweep's command asks for, and note the jobs that earlier ones did
    not have."""
    with _edited(folder) as plan:
        before = _jobs(plan)
        new = [number for number in entries["jobs"] if number not in before]
        additions = _entries(plan.get("additions"))
        plan |= entries
        if new or not additions:
            plan["additions"] = [*additions, {**_now(), "jobs": new}]


def note_look(folder: Path, look: Mapping[str, Any]) -> None:
    """Add a look at results to the plan of a sweep, unless the same one has been noted
    before.

    `look` has the names of the runs that count, their seeds, the metric, the folders
    compared with it, and whether test values were asked for. Raises OSError if the plan
    cannot be written.
    """
    with _edited(folder) as plan:
        looks = _entries(plan.get("looks"))
        look = {**look, "additions": len(_entries(plan.get("additions")))}
        if not any(look.items() <= before.items() for before in looks):
            plan["looks"] = [*looks, {**_now(), **look}]


@contextmanager
def _edited(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of sweep.json, {} if there is none; write it if it was changed.

    A sweep that begins and a report may do so at the same time.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW  # a stranger's link leads nowhere
    with open(os.open(folder / ".sweep.lock", flags, 0o666), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        path = folder / record.SWEEP
        before = record.read_json(path) if path.exists() else {}
        plan = dict(before)
        yield plan
        if plan != before:
            record.write_json(path, plan)


def _now() -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # in a container, an id without a name
        user = str(os.getuid())
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"when": when, "by": f"{user}@{os.uname().nodename}"}


def _jobs(plan: Mapping[str, Any]) -> dict[str, Any]:
    jobs = plan.get("jobs")
    return jobs if isinstance(jobs, dict) else {}


def _strings(value: Any) -> list[str]:
    return [str(item) for item in value] if isinstance(value, list) else []


def _entries(value: Any) -> list[dict[str, Any]]:
    entries = value if isinstance(value, list) else []
    return [entry for entry in entries if isinstance(entry, dict)]
