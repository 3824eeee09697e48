"""The chain of a run's checkpoints: plan.json, its digest before step 1, and a row for
each.

    chain.csv: step, weights, state, digest

A row is written for the plan (step 0), each checkpoint that is kept, and the last one.
The plan has the digest of the claim that the run is for, if any (`seedbed.claims`).
`state` is the SHA-256 of all that the checkpoint holds of the training, `weights` that
of its weights alone (`training.digests`); for the plan, `state` is that of the file.
`digest` is the SHA-256 of the digest before it and the row. So nothing can be changed
afterwards without changing all that follows, and each segment between two rows can be
replayed from a checkpoint and compared by itself.
"""

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.names import flatten
from seedbed.record import code, untrusted
from seedbed.record.change import NEUTRAL_KEYS, matches

FILE = "chain.csv"
PLAN = "plan.json"
FIELDS = ("step", "weights", "state", "digest")
_MOST_CELLS = 1_000_000
Row = dict[str, str]


def plan_of(
    settings: Mapping[str, Any], environment: Mapping[str, Any], last_step: int
) -> dict[str, Any]:
    """Return what a run is about to do: settings that can alter bits, code, data and
    segments."""
    return {
        "format_version": record.FORMAT_VERSION,
        **_stated(settings, environment),
        "segments": {
            "every_steps": settings["trainer"]["keep_checkpoint_every_steps"],
            "last_step": last_step,
        },
    }


class Chain:
    """The chain of a run that is being written."""

    def __init__(
        self, folder: Path, plan: Mapping[str, Any] | None, kept_step: int
    ) -> None:
        """Start it with a plan; without one, go on after `kept_step`.

        A run that an earlier version began has no chain to go on with.
        """
        path = folder / FILE
        self._rows = list[Row]()
        if plan is not None:
            record.write_json(folder / PLAN, plan)
            first = _row("", 0, "", _of_file(folder / PLAN))
            self._rows = [first]
            self._table = record.Table(path, FIELDS)
            self._table.append([first])
            self._table.sync()
        elif path.is_file():
            self._rows = [row for row in _read(folder) if int(row["step"]) <= kept_step]
            self._table = record.Table(
                path, FIELDS, lambda row: int(row["step"]) <= kept_step
            )

    @property
    def weights(self) -> dict[int, str]:
        """The SHA-256 of the weights of each checkpoint, by step."""
        return {int(row["step"]): row["weights"] for row in self._rows[1:]}

    def append(self, step: int, weights: str, state: str) -> None:
        """Add a checkpoint that is about to be written, unless its step is there."""
        if self._rows and int(self._rows[-1]["step"]) < step:
            self._rows.append(_row(self._rows[-1]["digest"], step, weights, state))
            self._table.append(self._rows[-1:])
            self._table.sync()

    def close(self) -> None:
        if self._rows:
            self._table.close()


def checkpoints(folder: Path) -> dict[int, Row]:
    """Return the row of each checkpoint in the chain of a run, by step; {} if it has
    none."""
    rows = _read(folder) if (folder / FILE).is_file() else []
    return {int(row["step"]): row for row in rows[1:]}


def contradictions(
    folder: Path, origin: record.Origin, summary: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for each thing in a chain that contradicts itself or the record."""
    there = [name for name in (FILE, PLAN) if (folder / name).is_file()]
    if len(there) == 1:
        yield f"{there[0]}: without the other file of the chain"
    elif there:
        rows = _read(folder)
        plan = record.read_json(folder / PLAN)
        yield from _broken(folder, rows)
        yield from _out_of_plan(rows, plan, summary)
        yield from _unlike(plan, _stated(origin.settings, origin.environment), summary)


def _broken(folder: Path, rows: list[Row]) -> Iterator[str]:
    """Yield a line if the first row is not that of the plan, or one does not follow."""
    if not rows or (rows[0]["step"], rows[0]["state"]) != (
        "0",
        _of_file(folder / PLAN),
    ):
        yield f"{FILE}: its first row is not that of {PLAN}"
    before = ""
    for row in rows:
        if row != _row(before, int(row["step"]), row["weights"], row["state"]):
            yield f"{FILE}: step {row['step']} does not follow from the row before it"
            return
        before = row["digest"]
    steps = [int(row["step"]) for row in rows]
    if any(a >= b for a, b in pairwise(steps)):
        yield f"{FILE}: its steps do not increase"


def _out_of_plan(
    rows: list[Row], plan: Mapping[str, Any], summary: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line if the steps of a chain are not those of its plan."""
    steps = [int(row["step"]) for row in rows[1:]]
    end = summary.get("steps")
    entries = flatten(plan)
    every_steps, last_step = (
        entries.get(f"segments.{name}") for name in ("every_steps", "last_step")
    )
    if type(every_steps) is not int or type(last_step) is not int or every_steps < 0:
        yield f"{PLAN}: expected integers as bounds of segments, got others"
        return
    # After a resume, other checkpoints may be kept.
    if type(end) is not int or summary.get("resumes"):
        return
    # A record may state any number of steps.
    if every_steps and not 0 <= end // every_steps <= len(steps) + 2:
        yield f"{FILE}: its steps are not those of {PLAN}"
        return
    planned = [*range(every_steps, end, every_steps)] if every_steps else []
    expected = [[*planned, end]]
    # it may have stopped before it kept the last one
    if summary.get("status") != "finished":
        expected += [planned, planned[:-1]]
    if steps not in expected:
        yield f"{FILE}: its steps are not those of {PLAN}"


def _unlike(
    plan: Mapping[str, Any], stated: Mapping[str, Any], summary: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a line for what a record states otherwise than its plan, unless a resume
    changed it."""
    resumes = summary.get("resumes") or ()
    changes = [each.get("changes") for each in resumes if isinstance(each, Mapping)]
    changed = {
        str(key) for each in changes if isinstance(each, Mapping) for key in each
    }
    for name, ours in stated.items():
        planned = plan.get(name)
        if not (isinstance(planned, Mapping) and isinstance(ours, Mapping)):
            planned = {"": planned}
            ours = {"": ours}
        # A file may have been imported later.
        for key in sorted(planned if name == "imported_files" else {*planned, *ours}):
            is_changed = any(
                changed_key in (key, f"{name}.{key}")
                or changed_key.startswith((f"{key}.", f"{name}.{key}"))
                for changed_key in changed
            )
            if planned.get(key) != ours.get(key) and not is_changed:
                yield (
                    f"{PLAN}: {name}{f' {key}' if key else ''} is not that of the"
                    " record"
                )


def _stated(
    settings: Mapping[str, Any], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the part of a plan that config.yaml and environment.json state as well."""
    keys = dict(sorted(flatten(settings).items()))
    sections: dict[str, list[tuple[str, str]]] = {}
    for key, value in keys.items():
        if not matches(key, NEUTRAL_KEYS):
            sections.setdefault(key.partition(".")[0], []).append((key, repr(value)))
    seeds = {
        key: keys[key] for key in keys if key == "seed" or key.startswith("seeds.")
    }
    files = ("imported_files", "data_sha256", "files_sha256", "statistics_sha256")
    return {
        "claim": keys.get("claim"),
        "seeds": seeds,
        "settings_sha256": {
            name: code.sha256(json.dumps(entries).encode())
            for name, entries in sections.items()
        },
        **{name: environment.get(name) for name in files},
    }


def _row(before: str, step: int, weights: str, state: str) -> Row:
    digest = code.sha256(f"{before},{step},{weights},{state}".encode())
    return {"step": str(step), "weights": weights, "state": state, "digest": digest}


def _of_file(path: Path) -> str:
    return code.sha256(untrusted.read_bytes(path, untrusted.MAX_TEXT_BYTES))


def _read(folder: Path) -> list[Row]:
    """Return the rows of chain.csv; raise InputError unless their steps are
    integers."""
    rows = untrusted.read_rows(folder / FILE, FIELDS, _MOST_CELLS)
    for row in rows:
        if not row["step"].isdecimal() or len(row["step"]) > 18:
            raise InputError(
                f"{folder / FILE}: expected steps, got {row['step'][:40]!r}"
            )
    return rows
