"""The report on sweeps: their groups ranked by validation, and compared with a
baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from seedbed import config, record
from seedbed.sweeps import differences, plan, statistics
from seedbed.sweeps.comparison import compare
from seedbed.sweeps.groups import TEST, Group, Sweep, SweepRun, ranks, varying

# Of environment.json: code, data, versions and hardware; if equal, equal seeds give
# equal weights.
_ORIGIN = (
    "imported_files",
    "data_sha256",
    "files_sha256",
    "statistics_sha256",
    "versions",
    "cpu",
    "gpu",
    "flags",
)
_NO_RESULT = {"n": 0, "mean": None, "sd": None, "interval": None}
MOST_COMPARED = 10  # groups beside the baseline; more are a search


def make(*sweeps: Sweep, final: bool = False) -> dict[str, Any]:
    """Return a report that ranks the groups of all sweeps and compares each with its
    baseline.

    `warning` is set if equal seeds gave other weights under a preset that promises
    bits; `left_out` maps runs to reasons; `verdict` is that of all comparisons if they
    agree, else undecided. `final` asks for the test values of the best group, which no
    other part of a report has.
    """
    groups = [group for sweep in sweeps for group in sweep.groups]
    keys = varying([group.settings for group in groups])
    obstacle = _unlike(groups)
    rows = [
        _row(group, rank, keys)
        for group, rank in zip(groups, ranks(groups, not obstacle), strict=True)
    ]
    against, notes = _baselines(sweeps)
    notes += [f"not ranked: {obstacle}"] if obstacle else []
    if _is_search(groups, against):
        notes.append(
            f"{len(groups)} groups: ranked, not compared. The best of many is better by"
            " chance, too: train it and a baseline with new seeds, and compare those"
            " two sweeps"
        )
        against = []
    comparisons = _comparisons(sweeps, against)
    verdicts = {comparison["verdict"] for comparison in comparisons}
    for group in groups:
        prefix = _name(group, sweeps, keys)
        notes += [f"{prefix}: {note}" if prefix else note for note in group.notes()]
    return {
        "confidence": statistics.CONFIDENCE,
        "warning": _broken_promise(groups),
        "notes": notes,
        "sweeps": [_history(sweep) for sweep in sweeps],
        "runs": sum(len(sweep.runs) for sweep in sweeps),
        "left_out": _left_out(sweeps),
        "groups": rows,
        "final": _final(groups, rows) if final else None,
        "comparisons": comparisons,
        "verdict": verdicts.pop() if len(verdicts) == 1 else "undecided",
    }


def _row(group: Group, rank: int | None, keys: Sequence[str]) -> dict[str, Any]:
    """Return a group as an entry of a report, with its values of some keys."""
    return {
        "sweep": group.sweep,
        "settings": group.values_of(keys),
        "rank": rank,
        "metric": group.metric or None,
        "mean": asdict(group.mean) if group.runs else _NO_RESULT,
        "means": group.means,
    }


def _left_out(sweeps: Sequence[Sweep]) -> dict[str, str]:
    """Return why runs do not count, by their names: after their sweep's folder if there
    are several sweeps."""
    prefixes = [f"{sweep.folder}/" if len(sweeps) > 1 else "" for sweep in sweeps]
    return {
        prefix + name: reason
        for prefix, sweep in zip(prefixes, sweeps, strict=True)
        for name, reason in sweep.left_out.items()
    }


def is_answer(report: Mapping[str, Any]) -> bool:
    """Return whether each group has a result, and no promise of equal bits is
    broken."""
    counts = [row["mean"]["n"] for row in report["groups"]]
    return bool(counts) and all(counts) and not report["warning"]


def note_looks(sweeps: Sequence[Sweep], final: bool) -> list[str]:
    """Note in the plan of each sweep that its results were looked at; return lines on
    failures."""
    lines = []
    for sweep in sweeps:
        runs = [run for group in sweep.groups for run in group.runs]
        if sweep.plan is None or not runs:
            continue
        look = {
            "runs": sorted(run.name for run in runs),
            "seeds": sorted({str(run.seeds.get("seed")) for run in runs}),
            "metric": sorted({group.metric for group in sweep.groups if group.runs}),
            "with": [str(other.folder) for other in sweeps if other is not sweep],
            "final": final,
        }
        try:
            plan.note_look(sweep.folder, look)
        except OSError as error:
            lines.append(
                f"{sweep.folder}: this look could not be noted: {error.strerror}"
            )
    return lines


def _unlike(groups: Sequence[Group]) -> str:
    """Return why the values of groups cannot be ranked, by the first reason; empty if
    they can."""
    counted = [group for group in groups if group.runs]
    for group in counted[1:]:
        changes = differences.between(counted[0], group)
        for reason in differences.other_values(counted[0], group, changes):
            return reason
    return ""


def _history(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep's folder and what its plan says of jobs and looks; null without a
    plan."""
    planned = sweep.plan
    return {
        "folder": str(sweep.folder),
        "planned": len(planned.jobs) if planned else None,
        "additions": planned and [*planned.additions],
        "looks": planned and [*planned.looks],
    }


def _baselines(sweeps: Sequence[Sweep]) -> tuple[list[tuple[Group, Group]], list[str]]:
    """Return pairs of baseline and group to compare, and notes on groups without a
    baseline.

    The baseline is the first group of a single sweep. Of several sweeps, it is the
    group of the first one with equal values of all keys that vary within a sweep, or
    its only group.
    """
    first, *others = sweeps
    if not others:
        return [(first.groups[0], group) for group in first.groups[1:]], []
    keys = _inner_keys(sweeps)
    by_label = {group.label(keys): group for group in first.groups}
    only = first.groups[0] if len(first.groups) == 1 else None
    against: list[tuple[Group, Group]] = []
    notes = []
    for group in (group for sweep in others for group in sweep.groups):
        if (baseline := by_label.get(group.label(keys), only)) is not None:
            against.append((baseline, group))
        else:
            notes.append(
                f"not compared, as {first.folder} lacks it:"
                f" {_name(group, sweeps, keys)}"
            )
    used = [id(baseline) for baseline, _ in against]
    for group in first.groups:
        if id(group) not in used:
            notes.append(f"not compared, as only {_name(group, sweeps, keys)} has it")
    return against, notes


def _inner_keys(sweeps: Sequence[Sweep]) -> list[str]:
    """Return the keys that vary within one of the sweeps."""
    inner = [varying([group.settings for group in sweep.groups]) for sweep in sweeps]
    return [*dict.fromkeys(key for keys in inner for key in keys)]


def _name(group: Group, sweeps: Sequence[Sweep], keys: Sequence[str]) -> str:
    """Return a group's settings, after its sweep's folder if there are several."""
    return f"{group.sweep if len(sweeps) > 1 else ''} {group.label(keys)}".strip()


def _is_search(groups: Sequence[Group], against: Sequence[tuple[Group, Group]]) -> bool:
    """Return whether groups are trials of a search: very many, or several of one seed
    each."""
    return len(against) > MOST_COMPARED or (
        len(groups) > 2 and all(len(group.values) < 2 for group in groups)
    )


def _final(
    groups: Sequence[Group], rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Return the test values of the best group; None if it is unknown which one is
    best."""
    counted = [
        (group, row) for group, row in zip(groups, rows, strict=True) if group.runs
    ]
    best = [pair for pair in counted if pair[1]["rank"] == 1] or counted
    if len(best) != 1:
        return None
    [(group, row)] = best
    estimates = {name: asdict(group.estimate(name)) for name in group.shared(TEST)}
    return {"sweep": row["sweep"], "settings": row["settings"], "metrics": estimates}


def _comparisons(
    sweeps: Sequence[Sweep], against: Sequence[tuple[Group, Group]]
) -> list[dict[str, Any]]:
    keys = _inner_keys(sweeps)
    # Bonferroni: with this confidence each, all intervals hold at once with CONFIDENCE.
    confidence = 1 - (1 - statistics.CONFIDENCE) / max(1, len(against))
    comparisons = [
        compare(a, b, (_name(a, sweeps, keys), _name(b, sweeps, keys)), confidence)
        for a, b in against
    ]
    return [
        {**asdict(made), "differs": [*map(entry, made.differs)]} for made in comparisons
    ]


def entry(change: record.Change) -> dict[str, Any]:
    return {
        "key": change.key,
        "kind": change.kind,
        "a": change.before,
        "b": change.now,
        "alters_bits": change.alters_bits,
    }


def _broken_promise(groups: Sequence[Group]) -> str:
    """Return a warning if equal seeds gave other weights under a preset that promises
    bits."""
    table: dict[str, list[tuple[SweepRun, float]]] = {}
    for run, value in (
        (run, run.metrics[of.metric]) for of in groups for run in of.runs
    ):
        if config.promises_bits(run.settings.get("determinism.on_nondeterministic")):
            asked = [
                run.identity,
                sorted(run.seeds.items()),
                record.altered(run.summary),
            ]
            origin = json.dumps(
                [*asked, *map(run.environment.get, _ORIGIN)], default=str
            )
            table.setdefault(origin, []).append((run, value))
    repeated = [runs for runs in table.values() if len(runs) > 1]
    broken = [runs for runs in repeated if len({run.weights for run, _ in runs}) > 1]
    if not broken:
        return ""
    floor = max(float(np.ptp([value for _, value in runs])) for runs in broken)
    return (
        f"NOT REPRODUCIBLE: {len(broken)} of {len(repeated)} repeated seeds gave"
        f" different weights; differences below {floor:.4g} are noise"
    )
