"""The report on sweeps: their groups ranked by validation, and compared with a baseline."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from seedbed import config, record
from seedbed.sweeps import differences, plan, statistics
from seedbed.sweeps.groups import TEST, Group, Sweep, SweepRun, ranks, varying

# Of environment.json: code, versions and hardware; if equal, equal seeds give equal weights.
_ORIGIN = ("imported_files", "versions", "cpu", "gpu", "flags")
_NO_RESULT = {"n": 0, "mean": None, "sd": None, "interval": None}
MOST_COMPARED = 10  # groups beside the baseline; more are a search


def make(*sweeps: Sweep, final: bool = False) -> dict[str, Any]:
    """Return a report that ranks the groups of all sweeps and compares each with its baseline.

    `warning` is set if equal seeds gave other weights under a preset that promises bits; `left_out`
    maps runs to reasons; `verdict` is that of all comparisons if they agree, else undecided.
    `final` asks for the test values of the best group, which no other part of a report has.
    """
    groups = [group for sweep in sweeps for group in sweep.groups]
    keys = varying([group.settings for group in groups])
    rows = [
        {
            "sweep": group.sweep,
            "settings": group.values_of(keys),
            "rank": rank,
            "metric": group.metric or None,
            "mean": asdict(group.mean) if group.runs else _NO_RESULT,
            "means": group.means,
        }
        for group, rank in zip(groups, ranks(groups), strict=True)
    ]
    against, notes = _baselines(sweeps)
    if _is_search(groups, against):
        notes.append(
            f"{len(groups)} groups: ranked, not compared. The best of many is better by chance, "
            "too: train it and a baseline with new seeds, and compare those two sweeps"
        )
        against = []
    comparisons = _comparisons(sweeps, against)
    verdicts = {each["verdict"] for each in comparisons}
    for group in groups:
        prefix = ": ".join(filter(None, [_name(group, sweeps, keys)]))
        notes += [f"{prefix}: {note}" if prefix else note for note in group.notes()]
    prefixes = [f"{sweep.folder}/" if len(sweeps) > 1 else "" for sweep in sweeps]
    return {
        "confidence": statistics.CONFIDENCE,
        "warning": _broken_promise(groups),
        "notes": notes,
        "sweeps": [_history(sweep) for sweep in sweeps],
        "runs": sum(len(sweep.runs) for sweep in sweeps),
        "left_out": {
            prefix + name: reason
            for prefix, sweep in zip(prefixes, sweeps, strict=True)
            for name, reason in sweep.left_out.items()
        },
        "groups": rows,
        "final": _final(groups, rows) if final else None,
        "comparisons": comparisons,
        "verdict": verdicts.pop() if len(verdicts) == 1 else "undecided",
    }


def is_answer(report: Mapping[str, Any]) -> bool:
    """Return whether each group has a result, and no promise of equal bits is broken."""
    counts = [row["mean"]["n"] for row in report["groups"]]
    return bool(counts) and all(counts) and not report["warning"]


def note_looks(sweeps: Sequence[Sweep], final: bool) -> list[str]:
    """Note in the plan of each sweep that its results were looked at; return lines on failures."""
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
            lines.append(f"{sweep.folder}: this look could not be noted: {error.strerror}")
    return lines


def _history(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep's folder and what its plan says of jobs and looks; null without a plan."""
    known = sweep.plan
    return {
        "folder": str(sweep.folder),
        "planned": len(known.jobs) if known else None,
        "additions": known and [*known.additions],
        "looks": known and [*known.looks],
    }


def _baselines(sweeps: Sequence[Sweep]) -> tuple[list[tuple[Group, Group]], list[str]]:
    """Return pairs of baseline and group to compare, and notes on groups without a baseline.

    The baseline is the first group of a single sweep. Of several sweeps, it is the group of the
    first one with equal values of all keys that vary within a sweep, or its only group.
    """
    first, *others = sweeps
    if not others:
        return [(first.groups[0], group) for group in first.groups[1:]], []
    keys = _inner_keys(sweeps)
    known = {group.label(keys): group for group in first.groups}
    only = first.groups[0] if len(first.groups) == 1 else None
    found, notes = [], []
    for group in (group for sweep in others for group in sweep.groups):
        if (baseline := known.get(group.label(keys), only)) is not None:
            found.append((baseline, group))
        else:
            notes.append(f"not compared, as {first.folder} lacks it: {_name(group, sweeps, keys)}")
    used = [id(baseline) for baseline, _ in found]
    for group in first.groups:
        if id(group) not in used:
            notes.append(f"not compared, as only {_name(group, sweeps, keys)} has it")
    return found, notes


def _inner_keys(sweeps: Sequence[Sweep]) -> list[str]:
    """Return the keys that vary within one of the sweeps."""
    inner = [varying([group.settings for group in sweep.groups]) for sweep in sweeps]
    return [*dict.fromkeys(key for keys in inner for key in keys)]


def _name(group: Group, sweeps: Sequence[Sweep], keys: Sequence[str]) -> str:
    """Return a group's settings, after its sweep's folder if there are several."""
    return f"{group.sweep if len(sweeps) > 1 else ''} {group.label(keys)}".strip()


def _is_search(groups: Sequence[Group], against: Sequence[tuple[Group, Group]]) -> bool:
    """Return whether groups are trials of a search: very many, or several of one seed each."""
    return len(against) > MOST_COMPARED or (
        len(groups) > 2 and all(len(group.values) < 2 for group in groups)
    )


def _final(groups: Sequence[Group], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the test values of the best group; None if it is unknown which one is best."""
    counted = [(group, row) for group, row in zip(groups, rows, strict=True) if group.runs]
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
    return [
        compare(a, b, (_name(a, sweeps, keys), _name(b, sweeps, keys)), confidence)
        for a, b in against
    ]


def compare(a: Group, b: Group, names: tuple[str, str], confidence: float) -> dict[str, Any]:
    """Compare two groups; they are paired by seed if the larger one has all seeds of the smaller.

    A difference takes two independent seeds on each side. The verdict is better or worse, higher or
    lower if it is unknown which is better, or undecided.
    """
    changes = differences.between(a, b)
    reasons = list(differences.obstacles(a, b, names, changes))
    table = pd.concat([a.values, b.values], axis=1, keys=["a", "b"]).dropna()
    paired = len(table) > 0 and len(table) == min(len(a.values), len(b.values))
    x, y = (group.values.to_numpy() for group in (a, b))
    if paired:
        x, y = table["a"].to_numpy(), table["b"].to_numpy()
    reasons += _too_few(a, b, x, y, paired)
    found: dict[str, Any] = {
        "paired": paired,
        "confidence": confidence,
        "difference": None,
        "sequential_interval": None,
        "decided_by": "t",
        "correlation": None,
        "a_wins": None,
        "smallest_p": None,
        "seeds_to_decide": None,
        "seeds_still_needed": None,
    }
    if not reasons:
        found |= _difference(a, b, (x, y), paired, confidence)
    return {
        **dict(zip(("a", "b"), names, strict=True)),
        "verdict": _verdict(a, found),
        **found,
        "not_comparable": reasons,
        "cautions": list(differences.cautions(a, b, names, changes)),
        "differs": [
            {"key": c.key, "kind": c.kind, "a": c.before, "b": c.now, "alters_bits": c.alters_bits}
            for c in changes
        ],
    }


def _too_few(
    a: Group, b: Group, x: statistics.Floats, y: statistics.Floats, paired: bool
) -> list[str]:
    """Return why no difference can be estimated from so few values, if so."""
    if not a.runs or not b.runs:
        return []  # named among the obstacles
    if min(len(x), len(y)) < 2 or not (a.is_independent and b.is_independent):
        return ["it takes two independent seeds on each side"]
    if a.fold_ratio is None or b.fold_ratio is None:
        return ["folds of one seed, whose sizes are not recorded"]
    if (a.fold_ratio or b.fold_ratio) and not paired:
        return ["folds of one seed are compared with the same folds alone"]
    return []


def _difference(
    a: Group,
    b: Group,
    values: tuple[statistics.Floats, statistics.Floats],
    paired: bool,
    confidence: float,
) -> dict[str, Any]:
    """Return the estimate of a difference, and what the seeds at hand can show."""
    x, y = values
    folds = max(a.fold_ratio or 0.0, b.fold_ratio or 0.0)
    d = statistics.difference(x, y, paired, confidence, folds)
    found: dict[str, Any] = {"difference": asdict(d)}
    is_added = differences.added_after_look(a) or differences.added_after_look(b)
    if paired and not folds:
        found["sequential_interval"] = statistics.sequential_interval(y - x, confidence)
    if is_added:
        found["decided_by"] = "sequential"
    if paired:
        found["correlation"] = statistics.correlation(x, y)
        if b.higher_is_better is not None:
            found["a_wins"] = statistics.share_won(x, y, b.higher_is_better)
    if not folds:
        found["smallest_p"] = statistics.smallest_p(len(x), len(y), paired)
        interval = found["sequential_interval"] if is_added else d.interval
        is_open = interval is None or interval[0] <= 0 <= interval[1]
        if d.mean and d.sd and d.interval is not None and is_open and not is_added:
            needed = statistics.seeds_to_decide(d.mean, d.sd, paired, confidence)
            found["seeds_to_decide"] = needed
            found["seeds_still_needed"] = max(0, needed - d.n)
    return found


def _verdict(a: Group, found: Mapping[str, Any]) -> str:
    difference = found["difference"]
    interval = difference and difference["interval"]
    if interval and found["decided_by"] == "sequential":
        interval = found["sequential_interval"]
    if not interval or interval[0] <= 0 <= interval[1]:
        return "undecided"
    if a.higher_is_better is None:
        return "higher" if difference["mean"] > 0 else "lower"
    return "better" if (difference["mean"] > 0) == a.higher_is_better else "worse"


def _broken_promise(groups: Sequence[Group]) -> str:
    """Return a warning if equal seeds gave other weights under a preset that promises bits."""
    table: dict[str, list[tuple[SweepRun, float]]] = {}
    for run, value in ((run, run.metrics[of.metric]) for of in groups for run in of.runs):
        if config.promises_bits(run.settings.get("determinism.on_nondeterministic")):
            own = [run.identity, sorted(run.seeds.items()), record.altered(run.summary)]
            origin = json.dumps([*own, *map(run.environment.get, _ORIGIN)], default=str)
            table.setdefault(origin, []).append((run, value))
    repeated = [runs for runs in table.values() if len(runs) > 1]
    broken = [runs for runs in repeated if len({run.weights for run, _ in runs}) > 1]
    if not broken:
        return ""
    floor = max(float(np.ptp([value for _, value in runs])) for runs in broken)
    return (
        f"NOT REPRODUCIBLE: {len(broken)} of {len(repeated)} repeated seeds gave different "
        f"weights; differences below {floor:.4g} are noise"
    )
