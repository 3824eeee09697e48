"""The report on a sweep, and the comparison of two: as text, JSON, sweep.csv and sweep.png."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from seedbed import record
from seedbed.errors import InputError, printable
from seedbed.record import text
from seedbed.sweeps import statistics
from seedbed.sweeps.groups import Group, Run, Sweep, varying
from seedbed.sweeps.statistics import CONFIDENCE, Estimate


@dataclass(frozen=True)
class Comparison:
    """Group B against group A.

    Attributes:
        verdict: better, worse or undecided; higher or lower where no record says what is better.
        difference: None if there are not two independent seeds on each side.
        seeds_to_decide: None if it is decided, or cannot be estimated.
    """

    a: str
    b: str
    verdict: str = "undecided"
    paired: bool = False
    difference: Estimate | None = None
    seeds_to_decide: int | None = None

    def line(self) -> str:
        """Return the comparison in a line."""
        d, line = self.difference, f"{self.b} against {self.a}: {self.verdict}"
        if d is None or d.sd is None:
            return f"{line}, because it takes two independent seeds on each side"
        unit = "paired seeds" if self.paired else "unpaired seeds on each side"
        show = _formatter([d.sd])
        ends = " to ".join(show(end, "+") for end in d.interval or ())
        interval = f"95 % interval {ends}" if ends else "no spread"
        line += f", {show(d.mean, '+')} ({interval}, {d.n} {unit})"
        needed = f"; {self.seeds_to_decide} would decide, if this is the true difference"
        return line + needed if self.seeds_to_decide else line


@dataclass(frozen=True)
class Row:
    """A group in the table, named by the settings in which groups differ.

    Attributes:
        metric, mean: what is reported; groups are compared by it.
        means: of every final metric that all runs of the group have.
    """

    sweep: str
    settings: dict[str, Any]
    metric: str
    mean: Estimate
    means: dict[str, float]


@dataclass(frozen=True)
class Report:
    """On one sweep, its groups against the first; or on two, those of B against those of A.

    Attributes:
        warning: equal seeds gave other weights under a preset that promises bits; empty if not.
        runs: how many there are, also those left out.
        left_out: the reasons, by run.
        verdict: of the comparisons if they agree, else undecided.
    """

    confidence: float
    warning: str
    notes: Sequence[str]
    runs: int
    left_out: dict[str, str]
    groups: Sequence[Row]
    comparisons: Sequence[Comparison]
    verdict: str


def make(*sweeps: Sweep) -> Report:
    """Make the report on one sweep or two.

    Raises:
        InputError: two sweeps have no groups, or no metric, in common.
    """
    named = [(x, group) for x, each in zip("AB", sweeps, strict=False) for group in each.groups]
    keys = varying([group.runs[0].settings for _, group in named])
    rows, notes = [], []
    for letter, group in named:
        settings = {key: group.runs[0].settings.get(key) for key in keys}
        rows.append(Row(letter, settings, group.metric, group.summary, group.means))
        name = f"{group.label}: " * bool(group.label)
        if not group.is_independent:
            notes.append(f"{name}runs share the seeds of some streams: no interval, no difference")
        if group.has_changed_code:
            notes.append(f"{name}runs had different code: compare.py names the files")
        if len(group.values) > 1 and len({run.weights for run in group.runs} - {""}) == 1:
            notes.append(f"{name}all seeds gave the same weights: they change nothing")
    prefixes = ("A ", "B ") if len(sweeps) > 1 else ("",)
    runs = {
        x + run.name: run for x, each in zip(prefixes, sweeps, strict=True) for run in each.runs
    }
    left_out = {name: run.problem for name, run in runs.items() if run.problem}
    found = _comparisons(*sweeps)
    verdicts = {each.verdict for each in found}
    verdict = verdicts.pop() if len(verdicts) == 1 else "undecided"
    warning = _broken_promise([group for _, group in named])
    return Report(CONFIDENCE, warning, notes, len(runs), left_out, rows, found, verdict)


def describe(report: Report) -> str:
    """Return the report as text for a terminal."""
    lines = [f"  {' '.join(f'{x}: {y}'.split())}" for x, y in report.left_out.items()]
    title = f"{len(lines)} of {report.runs} runs failed and are left out"
    parts = [report.warning, "\n".join([title, *lines] if lines else []), _table(report.groups)]
    parts += ["\n".join(each.line() for each in report.comparisons), *report.notes]
    return printable("\n\n".join(filter(None, parts)))


def write(sweep: Sweep, metric: str | None = None) -> Report:
    """Write sweep.csv and the picture into a sweep's folder; return the report.

    Args:
        metric: the one that was asked for: its picture does not replace that of another.
    """
    try:
        record.write_atomically(sweep.folder / "sweep.csv", runs_csv(sweep.runs))
        if sweep.groups:
            from seedbed.sweeps import plots  # costs the import of matplotlib

            name = f"sweep_{metric.replace('/', '_')}.png" if metric else "sweep.png"
            plots.draw(sweep, sweep.folder / name)
    except OSError as error:
        raise InputError(
            f"{sweep.folder}: expected a folder to write into, got {error.strerror}"
        ) from None
    return make(sweep)


def runs_csv(runs: Sequence[Run]) -> str:
    """Return a row for each run: the seeds and settings that vary, and final metrics in full."""
    own = [{**run.settings, **dict(run.seeds)} for run in runs]
    known = dict.fromkeys(key for each in own for key in each)
    keys = [k for k in known if len({repr(each.get(k)) for each in own if each}) > 1]
    keys = [k for k in keys if any(each.get(k) != each.get("seed") for each in own)]
    metrics = dict.fromkeys(name for run in runs for name in run.metrics)
    columns = ["run", "problem", "seed", *keys, *metrics, "weights"]
    rows = [
        {"run": run.name, "problem": run.problem, **each, **run.metrics, "weights": run.weights}
        for run, each in zip(runs, own, strict=True)
    ]
    return text.as_csv(columns, rows)


def _comparisons(a: Sweep, b: Sweep | None = None) -> list[Comparison]:
    """Compare the groups of two sweeps, or those of one with its first."""
    if b is None:
        same = [group for group in a.groups[1:] if group.metric == a.groups[0].metric]
        return [_compare(a.groups[0], group, group.label) for group in same]
    first, second = ({(g.label, g.metric): g for g in sweep.groups} for sweep in (a, b))
    if not first or first.keys() != second.keys():
        names = ["; ".join(" ".join(k).strip() for k in g) or "none" for g in (first, second)]
        raise InputError(f"{b.folder}: expected the groups of A ({names[0]}), got {names[1]}")
    return [_compare(first[k], second[k], f"B {k[0]}".strip(), f"A {k[0]}".strip()) for k in first]


def _compare(a: Group, b: Group, name_b: str, name_a: str = "") -> Comparison:
    """Compare two groups: in pairs if all seeds of the smaller one are in the other, too."""
    name_a = name_a or a.label
    both = [seeds for seeds in a.values if seeds in b.values]
    smaller = min(len(a.values), len(b.values))
    if smaller < 2 or not a.is_independent or not b.is_independent:
        return Comparison(name_a, name_b)
    paired = len(both) == smaller
    first, second = (
        np.array([g.values[s] for s in (both if paired else g.values)]) for g in (a, b)
    )
    found = statistics.difference(first, second, paired)
    if found.interval is None or found.mean == 0 or found.sd is None:
        return Comparison(name_a, name_b, "undecided", paired, found)
    if found.interval[0] <= 0 <= found.interval[1]:
        needed = statistics.seeds_to_decide(found.mean, found.sd, paired)
        return Comparison(name_a, name_b, "undecided", paired, found, needed)
    words = ("higher", "lower") if b.higher_is_better is None else ("better", "worse")
    verdict = words[(found.mean > 0) == (b.higher_is_better is False)]
    return Comparison(name_a, name_b, verdict, paired, found)


def _broken_promise(groups: Sequence[Group]) -> str:
    """Return a line if equal seeds gave other weights under a preset that promises them."""
    table: dict[str | None, list[tuple[str, float]]] = {}
    for group in groups:
        for run in group.runs:
            table.setdefault(run.promise(), []).append((run.weights, run.metrics[group.metric]))
    table.pop(None, None)
    repeated = [runs for runs in table.values() if len(runs) > 1]
    broken = [runs for runs in repeated if len({weights for weights, _ in runs}) > 1]
    if not broken:
        return ""
    floor = max(max(v for _, v in runs) - min(v for _, v in runs) for runs in broken)
    return (
        f"NOT REPRODUCIBLE: {len(broken)} of {len(repeated)} repeated seeds gave different "
        f"weights; differences below {floor:.4g} are noise"
    )


def _table(rows: Sequence[Row]) -> str:
    """Return the table of all groups; without rows it is empty."""
    if not rows:
        return ""
    show = _formatter([row.mean.sd for row in rows])
    names = [key.removesuffix(".name") for key in rows[0].settings]
    others = _others(rows)
    heads = [f"mean {name}" for name in others]
    first = ["sweep"] * (rows[-1].sweep == "B")  # of one sweep, it says nothing
    lines = [[*first, *names, "metric", "n", "mean", "sd", "95 % interval", *heads]]
    for row in rows:
        sd = "-" if row.mean.sd is None else show(row.mean.sd)
        interval = " to ".join(map(show, row.mean.interval or ())) or "-"
        numbers = [str(row.mean.n), show(row.mean.mean), sd, interval]
        numbers += [f"{row.means[name]:.4g}" if name in row.means else "-" for name in others]
        cells = [row.sweep] * bool(first)
        lines.append([*cells, *map(str, row.settings.values()), row.metric, *numbers])
    # Markdown: a bar before the first cell and after the last, and a rule below the names.
    head, *body = [line.strip() for line in text.aligned([["", *x, ""] for x in lines], " | ")]
    return "\n".join([head, "".join(c if c == "|" else "-" for c in head), *body])


def _others(rows: Sequence[Row]) -> list[str]:
    """Return the other metrics of the data set that is reported on; sweep.csv has those of all."""
    phases = tuple({f"{row.metric.partition('_')[0]}_" for row in rows})
    reported = {row.metric for row in rows}
    known = dict.fromkeys(name for row in rows for name in row.means)
    return [name for name in known if name.startswith(phases) and name not in reported]


def _formatter(sds: Iterable[float | None]) -> Callable[..., str]:
    """Return what shows values with the digits that their deviations deserve: two of the least."""
    smallest = min((sd for sd in sds if sd), default=0.0)
    decimals = 1 - math.floor(math.log10(smallest)) if smallest else 99
    form = f".{max(0, decimals)}f" if decimals < 10 else ".4g"
    return lambda value, sign="": f"{value:{sign}{form}}"
