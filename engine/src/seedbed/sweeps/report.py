"""The report on a sweep, and the comparison of two: as text, JSON, sweep.csv and sweep.png."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from seedbed import config, record
from seedbed.errors import InputError, printable
from seedbed.record import plots, text
from seedbed.sweeps import statistics
from seedbed.sweeps.groups import Group, Sweep, SweepRun, is_test, settings_of, sweep_of, varying

# Of environment.json: code, versions and hardware; if equal, equal seeds give equal weights.
_ORIGIN = ("imported_files", "versions", "cpu", "gpu", "flags")
_MOST_LETTERS = 24  # of a setting in a plot


def make(*sweeps: Sweep, metric: str | None = None) -> dict[str, Any]:
    """Return a report that compares a sweep's groups to its first, or B's groups to A's.

    `warning` is set if equal seeds gave other weights under a preset that promises bits; `left_out`
    maps runs to reasons; `verdict` is that of all comparisons if they agree, else undecided. The
    sweeps have been read for `metric`, if given. Raises InputError if two have no group in common,
    or other metrics.
    """
    notes: list[str] = []
    if len(sweeps) > 1:
        a, b, notes = _shared(sweeps[0], sweeps[1], metric)
        sweeps = (a, b)
    if metric and is_test(metric) and any(len(sweep.groups) > 1 for sweep in sweeps):
        notes.append(f"warning: to choose a group by {metric} is to choose on the test set")
    groups = [group for sweep in sweeps for group in sweep.groups]
    keys = varying([group.runs[0].settings for group in groups])
    rows: list[dict[str, Any]] = []
    left_out: dict[str, str] = {}
    for letter, sweep in zip("AB", sweeps, strict=False):
        for group, rank in zip(sweep.groups, sweep.ranks, strict=True):
            settings = settings_of(keys, group.runs[0])
            row = {"sweep": letter, "settings": settings, "rank": rank, "metric": group.metric}
            rows.append(row | {"mean": asdict(group.summary), "means": group.means})
        prefix = f"{letter} " if len(sweeps) > 1 else ""
        left_out |= {prefix + run.name: run.problem for run in sweep.runs if run.problem}
    comparisons = _comparisons(*sweeps)
    verdicts = {each["verdict"] for each in comparisons}
    return {
        "confidence": statistics.CONFIDENCE,
        "warning": _broken_promise(groups),
        "notes": notes + [note for group in groups for note in group.notes()],
        "runs": sum(len(sweep.runs) for sweep in sweeps),
        "left_out": left_out,
        "groups": rows,
        "comparisons": comparisons,
        "verdict": verdicts.pop() if len(verdicts) == 1 else "undecided",
    }


def _shared(a: Sweep, b: Sweep, metric: str | None = None) -> tuple[Sweep, Sweep, list[str]]:
    """Return two sweeps without the groups that only one of them has, and notes that name those."""
    # Groups correspond if they have equal values of all keys that vary within either sweep.
    keys = [*dict.fromkeys(key for sweep in (a, b) for g in sweep.groups for key in g.varied)]

    def label(run: SweepRun) -> str:
        return Group(settings_of(keys, run), [run]).label

    names = [[label(group.runs[0]) for group in sweep.groups] for sweep in (a, b)]
    both = {*names[0]} & {*names[1]}
    if not both:
        x, y = ("; ".join(each) or "none" for each in names)
        raise InputError(f"{b.folder}: expected a group of A ({x}), got {y}")
    notes = [f"left out, because only A has it: {x}" for x in names[0] if x not in both]
    notes += [f"left out, because only B has it: {x}" for x in names[1] if x not in both]
    kept = []
    for sweep in (a, b):
        runs = [run for run in sweep.runs if run.failure or label(run) in both]
        again = sweep_of(sweep.folder, runs, metric)  # the metric depends on the number of groups
        groups = [replace(group, varied=settings_of(keys, group.runs[0])) for group in again.groups]
        kept.append(replace(again, groups=groups))
    return kept[0], kept[1], notes


def describe(report: Mapping[str, Any]) -> str:
    """Return the report as text for a terminal."""
    lines = [f"  {' '.join(f'{x}: {y}'.split())}" for x, y in report["left_out"].items()]
    title = f"{len(lines)} of {report['runs']} runs are left out"
    parts = [report["warning"], "\n".join([title, *lines] if lines else [])]
    parts += [_table(report["groups"]), "\n".join(map(_line, report["comparisons"]))]
    for row in (row for row in report["groups"] if row["rank"] == 1):
        settings = ", ".join(f"{key}={value}" for key, value in row["settings"].items())
        test = [f"{name} {mean:.4g}" for name, mean in row["means"].items() if is_test(name)]
        parts.append(f"best by {row['metric']}: " + "; ".join([settings, *test]))
    return printable("\n\n".join(filter(None, [*parts, *report["notes"]])))


def write(sweep: Sweep, metric: str | None = None) -> dict[str, Any]:
    """Write sweep.csv and sweep.png, or for a `metric` only sweep_METRIC.png; return the report."""
    try:
        if metric is None:
            record.write_atomically(sweep.folder / "sweep.csv", runs_csv(sweep.runs))
        if sweep.groups:
            name = f"sweep_{metric.replace('/', '_')}.png" if metric else "sweep.png"
            draw(sweep, sweep.folder / name)
    except OSError as error:
        raise InputError(
            f"{sweep.folder}: expected a folder to write into, got {error.strerror}"
        ) from None
    return make(sweep, metric=metric)


def draw(sweep: Sweep, path: Path) -> None:
    """Draw the runs and the mean of each group that reports the first group's metric."""
    from matplotlib.figure import Figure  # importing it takes half a second

    metric = sweep.groups[0].metric
    groups = [group for group in sweep.groups if group.metric == metric]
    height = max(2.6, 0.18 * sum(2 + len(group.varied) for group in groups) + 1.0)
    with plots.style():
        figure = Figure(figsize=(4.8, height), layout="constrained")
        axes, names = figure.subplots(), []
        for number, group in enumerate(groups):
            values, mean = list(group.values.values()), group.summary
            axes.plot(values, [number - 0.12] * len(values), "o", alpha=0.5, mew=0, c=plots.BLUE)
            if mean.interval is not None:
                axes.plot(mean.mean, number + 0.12, "D", c=plots.BLUE)
                axes.plot(mean.interval, [number + 0.12] * 2, "-|", c=plots.BLUE)
            settings = (part[:_MOST_LETTERS] for part in group.label.split(", ") if part)
            names.append("\n".join([*map(plots.literal, settings), f"n={mean.n}"]))
        axes.set_yticks(range(len(groups)), names)
        axes.set(ylim=(len(groups) - 0.4, -0.6), xlabel=plots.literal(metric.replace("_", " ")))
        axes.set_title("runs, mean over seeds, 95 % interval", loc="right")
        axes.locator_params(axis="x", nbins=5)
        axes.grid(visible=False, axis="y")
        plots.save(figure, path)


def runs_csv(runs: Sequence[SweepRun]) -> str:
    """Return a CSV table of runs: seeds and settings that vary, and all digits of final metrics."""
    own = [{**run.settings, **dict(run.seeds)} for run in runs]
    known = dict.fromkeys(key for each in own for key in each)
    keys = [k for k in known if len({repr(each.get(k)) for each in own if each}) > 1]
    keys = [k for k in keys if any(each.get(k) != each.get("seed") for each in own)]
    results = [run.metrics if run.summary.get("status") == "finished" else {} for run in runs]
    metrics = dict.fromkeys(name for each in results for name in each)
    columns = ["run", "problem", "seed", *keys, *metrics, "weights"]
    rows = [
        {"run": run.name, "problem": run.problem, **each, **result, "weights": run.weights}
        for run, each, result in zip(runs, own, results, strict=True)
    ]
    return text.as_csv(columns, rows)


def _comparisons(a: Sweep, b: Sweep | None = None) -> list[dict[str, Any]]:
    """Compare the groups of two sweeps, or those of one sweep to its first."""
    if b is None:
        others = [group for group in a.groups[1:] if group.metric == a.groups[0].metric]
        return [_compare(a.groups[0], each, a.groups[0].label, each.label) for each in others]
    x, y = ({(g.label, g.metric): g for g in sweep.groups} for sweep in (a, b))
    if not x or x.keys() != y.keys():
        names = ["; ".join(" ".join(k).strip() for k in groups) or "none" for groups in (x, y)]
        raise InputError(f"{b.folder}: expected the groups of A ({names[0]}), got {names[1]}")
    return [_compare(x[k], y[k], f"A {k[0]}".strip(), f"B {k[0]}".strip()) for k in x]


def _compare(a: Group, b: Group, name_a: str, name_b: str) -> dict[str, Any]:
    """Compare two groups, paired by seed if the larger one has all seeds of the smaller one.

    A difference takes two independent seeds on each side. The verdict is better or worse, higher or
    lower if it is unknown which is better, or undecided.
    """
    verdict, paired, d, needed = "undecided", False, None, None
    n = min(len(a.values), len(b.values))
    if n > 1 and a.is_independent and b.is_independent:
        shared = [seeds for seeds in a.values if seeds in b.values]
        paired = len(shared) == n
        x, y = (np.array([g.values[s] for s in (shared if paired else g.values)]) for g in (a, b))
        d = statistics.difference(x, y, paired)
    if d is not None and d.interval is not None and d.sd and d.mean != 0:
        if d.interval[0] <= 0 <= d.interval[1]:
            needed = statistics.seeds_to_decide(d.mean, d.sd, paired)
        else:
            words = ("higher", "lower") if b.higher_is_better is None else ("better", "worse")
            verdict = words[(d.mean > 0) == (b.higher_is_better is False)]
    difference = None if d is None else asdict(d)
    return {
        **{"a": name_a, "b": name_b, "verdict": verdict, "paired": paired},
        **{"difference": difference, "seeds_to_decide": needed},
    }


def _line(comparison: Mapping[str, Any]) -> str:
    d, line = comparison["difference"], "{b} against {a}: {verdict}".format(**comparison)
    if d is None:
        return f"{line}, because it takes two independent seeds on each side"
    unit = "paired seeds" if comparison["paired"] else "unpaired seeds on each side"
    show = _formatter([d["sd"]])
    ends = " to ".join(show(end, "+") for end in d["interval"] or ())
    interval = f"95 % interval {ends}" if ends else "no spread"
    line += f", {show(d['mean'], '+')} ({interval}, {d['n']} {unit})"
    needed = comparison["seeds_to_decide"]
    return f"{line}; {needed} seeds would decide if this is the true difference" if needed else line


def _broken_promise(groups: Sequence[Group]) -> str:
    """Return a warning if equal seeds gave other weights under a preset that promises bits."""
    table: dict[str, list[SweepRun]] = {}
    for run in (run for group in groups for run in group.runs):
        if config.promises_bits(run.settings.get("determinism.on_nondeterministic")):
            own = [run.identity, run.seeds, record.altered(run.summary)]
            origin = json.dumps([*own, *map(run.environment.get, _ORIGIN)], default=str)
            table.setdefault(origin, []).append(run)
    repeated = [runs for runs in table.values() if len(runs) > 1]
    broken = [runs for runs in repeated if len({run.weights for run in runs}) > 1]
    if not broken:
        return ""
    floor = max(float(np.ptp([run.metrics[run.metric] for run in runs])) for runs in broken)
    return (
        f"NOT REPRODUCIBLE: {len(broken)} of {len(repeated)} repeated seeds gave different "
        f"weights; differences below {floor:.4g} are noise"
    )


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the groups as a Markdown table, with the other metrics of the same phase."""
    if not rows:
        return ""
    show = _formatter([row["mean"]["sd"] for row in rows])
    phases = tuple({f"{row['metric'].partition('_')[0]}_" for row in rows})
    metrics = dict.fromkeys(name for row in rows for name in row["means"])
    reported = {row["metric"] for row in rows}
    others = [name for name in metrics if name.startswith(phases) and name not in reported]
    keys = [key.removesuffix(".name") for key in rows[0]["settings"]]
    head = ["metric", "n", "mean", "sd", "95 % interval", *(f"mean {name}" for name in others)]
    lines = [["sweep", *keys, *head]]
    for row in sorted(rows, key=lambda row: row["rank"] or 0):
        of, means = row["mean"], row["means"]
        sd = "-" if of["sd"] is None else show(of["sd"])
        interval = " to ".join(map(show, of["interval"] or ())) or "-"
        cells = [row["sweep"], *map(str, row["settings"].values()), row["metric"], str(of["n"])]
        cells += [show(of["mean"]), sd, interval]
        shown = {name: f"{value:#.4g}".rstrip(".") for name, value in means.items()}
        lines.append(cells + [shown.get(name, "-") for name in others])
    if rows[-1]["sweep"] == "A":  # one sweep, which needs no name
        lines = [line[1:] for line in lines]
    # Empty cells make a bar at both ends of a line; a rule goes below the header.
    top, *body = [line.strip() for line in text.aligned([["", *x, ""] for x in lines], " | ")]
    return "\n".join([top, "".join(c if c == "|" else "-" for c in top), *body])


def _formatter(sds: Iterable[float | None]) -> Callable[..., str]:
    """Return a function that formats values to two digits of their smallest deviation."""
    smallest = min((sd for sd in sds if sd), default=0.0)
    decimals = 1 - math.floor(math.log10(smallest)) if smallest else 99
    form = f".{max(0, decimals)}f" if decimals < 10 else ".4g"
    return lambda value, sign="": f"{value:{sign}{form}}"
