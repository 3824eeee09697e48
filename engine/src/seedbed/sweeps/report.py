"""The report of a sweep: statistics of its runs, as text, CSV files and a picture."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from seedbed import record
from seedbed.errors import InputError, printable
from seedbed.names import STREAMS
from seedbed.sweeps.differences import differences
from seedbed.sweeps.groups import Group, Run, Sweep
from seedbed.sweeps.labels import leading_keys
from seedbed.sweeps.promises import broken_promises, other_origins
from seedbed.sweeps.seeds import by_column, columns
from seedbed.sweeps.summary import NONE, Scale, Summary, sources, streams_vary_alone, summarise

INTERVAL_LEGEND = "95 % interval: of the mean, by bootstrap, widened for few seeds."
SPREAD_LEGEND = """\
new test set: sqrt(p (1 - p) / n), how far the accuracy would move with another test set of the same
size. independent errors: sqrt(sum of p (1 - p)) / n with p per sample, how far it would move
between runs if every sample fell on its own; a spread of the runs near it says that they differ in
which samples they get right, hardly in how well they do on new ones."""
_WIDTH = 100  # columns of a terminal
TOGETHER_LEGEND = """\
Streams vary one at a time: n, mean, sd, interval and the number of seeds for a difference are of
the runs in which all vary together."""
SOURCES_LEGEND = """\
Each row: runs in which that seed alone differs, all others held. Rows whose intervals overlap are
in no order."""


def write(sweep: Sweep) -> str:
    """Write the files of a sweep's report into its folder and return what the terminal shows."""
    summaries = [summarise(group) for group in sweep.groups]
    text = printable(describe(sweep, summaries))
    names = [field.name for field in fields(Summary)]
    files = {
        "report.md": f"# Sweep {sweep.folder.name}\n\n{text}\n",
        "sweep.csv": runs_csv(sweep),
        "groups.csv": _csv(names, (asdict(each) for each in summaries)),
    }
    try:
        for name, content in files.items():
            record.write_atomically(sweep.folder / name, content)
    except OSError as error:
        raise InputError(
            f"{sweep.folder}: expected a folder that can be written, got {error.strerror}; "
            "free space, or report on a copy"
        ) from None
    if sweep.groups:
        from seedbed.sweeps import plots  # costs the import of matplotlib

        plots.draw(sweep, summaries, sweep.folder / "sweep.png")
    return text


def describe(sweep: Sweep, summaries: Sequence[Summary]) -> str:
    """Return the report as Markdown that reads well on a terminal."""
    parts = broken_promises(sweep.groups)
    parts += other_origins(sweep.groups)
    parts += lost_runs(sweep)
    parts += _mixture(sweep)
    if summaries:
        parts += summary_tables(summaries)
        parts += beside_the_first(sweep.groups, summaries)
        parts += _seeds_for_a_difference(summaries)
    parts += [text for group in sweep.groups for text in _folds(group)]
    parts += [_one_seed(each) for each in summaries if each.n == 1]
    parts += [text for group in sweep.groups for text in _without_effect(group)]
    parts += [text for group in sweep.groups for text in sources_table(group)]
    return "\n\n".join(parts)


def lost_runs(sweep: Sweep) -> list[str]:
    """Name the runs that do not count."""
    if not sweep.lost:
        return []
    lines = [f"- {run.name}: {run.problem}" for run in sweep.lost]
    return ["\n".join([f"{len(lines)} of {len(sweep.runs)} runs do not count:", *lines])]


def _mixture(sweep: Sweep) -> list[str]:
    """Return a line on the configurations of a sweep, if it has several, and their differences."""
    if len(sweep.groups) < 2:
        return []
    keys = leading_keys([group.settings for group in sweep.groups])
    text = f"{len(sweep.groups)} configurations, shown apart. They differ in: {', '.join(keys)}."
    metrics = sorted({group.metric for group in sweep.groups})
    if len(metrics) > 1:
        text += f" They have no metric in common ({', '.join(metrics)}) and cannot be compared."
    return [text]


def _folds(group: Group) -> list[str]:
    """Return what the numbers of a group with several folds are of."""
    if not group.folds:
        return []
    name = f" in {group.label}" if group.label else ""
    if group.unit == "seeds":
        return [
            f"Cross-validation{name}: {group.folds} folds of each seed; n, mean, sd and interval "
            "are of the seeds, each the mean over its folds."
        ]
    return [
        f"Cross-validation{name}: {group.folds} folds of one seed; n, mean, sd and interval are of "
        "the folds. Their training sets overlap, so the interval is too narrow for other data."
    ]


def _one_seed(summary: Summary) -> str:
    name = summary.group or "this sweep"
    return (
        f"One seed only in {name}: no spread and no interval; run more, such as -m seed=0,1,2,3,4"
    )


def _without_effect(group: Group) -> list[str]:
    """Return a line on seeds that differ and weights that do not: a seed that is not used."""
    weights = {run.summary.get("fingerprints", {}).get("weights") for run in group.runs}
    if len(group.values) < 2 or len(weights) > 1 or weights == {None}:
        return []
    name = f" in {group.label}" if group.label else ""
    streams = ", ".join(group.varied)
    return [f"All seeds{name} ended with the same weights: {streams} changed nothing."]


def summary_tables(summaries: Sequence[Summary]) -> list[str]:
    """Return the tables of all groups, with their legends; before them what numbers stand for."""
    names, listed = table_names(summaries)
    parts = [*listed, groups_table(names, summaries), INTERVAL_LEGEND]
    if any(each.new_test_set_sd is not None for each in summaries):
        parts += [spread_table(names, summaries), SPREAD_LEGEND]
    return parts


def table_names(summaries: Sequence[Summary]) -> tuple[list[str], list[str]]:
    """Return what the groups are called in tables: if their names make one too wide, numbers.

    Returns:
        The names, and a list of what the numbers stand for, if there are any.
    """
    names = [each.group or "all" for each in summaries]
    widest = max(map(len, groups_table(names, summaries).splitlines()))
    if len(names) == 1 or widest <= _WIDTH:
        return names, []
    numbers = [str(number) for number in range(1, len(names) + 1)]
    return numbers, ["\n".join(f"{n}. {name}" for n, name in zip(numbers, names, strict=True))]


def beside_the_first(groups: Sequence[Group], summaries: Sequence[Summary]) -> list[str]:
    """Return the table of how the other groups differ from the first, seed by seed if they can."""
    names, _ = table_names(summaries)
    scale = Scale(groups[0].metric)
    others = [
        (name, differences(groups[0], group))
        for name, group in zip(names[1:], groups[1:], strict=True)
        if group.metric == groups[0].metric
    ]
    rows = [(name, *found[0].cells(scale)) for name, found in others if found]
    if not rows:
        return []
    title = f"Difference from {names[0]} (each interval is of one comparison alone):"
    return [title, markdown_table(("group", "over", "difference", "sd", "95 % interval"), rows)]


def groups_table(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """Return the tables of what the runs reached, one for each metric; groups.csv has more."""
    header = ("group", "n", "mean", "sd", "95 % interval", "min (seed)", "max (seed)")
    tables: dict[str, list[tuple[str, ...]]] = {}
    for name, each in zip(names, summaries, strict=True):
        scale = Scale(each.metric)
        tables.setdefault(scale.title, []).append((
            name, show_count(each.n), scale.show(each.mean), scale.show(each.sd),
            scale.show_interval(each.interval),
            f"{scale.show(each.minimum)} ({each.minimum_seed})",
            f"{scale.show(each.maximum)} ({each.maximum_seed})",
        ))  # fmt: skip
    return "\n\n".join(
        f"{title}\n\n{markdown_table(header, rows)}" for title, rows in tables.items()
    )


def _seeds_for_a_difference(summaries: Sequence[Summary]) -> list[str]:
    """Return how many seeds it takes to tell two sweeps of such spreads apart, group by group."""
    lines = []
    for each in summaries:
        small, large = each.seeds_for_small_difference, each.seeds_for_large_difference
        if small is not None and large is not None:
            names = Scale(each.metric).difference_names
            place = f"{each.group}: " if each.group else ""
            lines.append(
                f"- {place}{names[0]} with about {small} unpaired seeds, {names[1]} with about "
                f"{large}"
            )
    title = (
        "Seeds per sweep that show a difference of two without common seeds "
        "(two-sided 5 %, power 80 %):"
    )
    return ["\n".join([title, *lines])] if lines else []


def spread_table(names: Sequence[str], summaries: Sequence[Summary]) -> str:
    """Return the table of how far the runs lie apart, and of what that means for comparisons."""
    header = ("group", "sd of the runs", "new test set", "independent errors")
    rows = []
    for name, each in zip(names, summaries, strict=True):
        scale = Scale(each.metric)
        rows.append((
            name, scale.show(each.sd), scale.show(each.new_test_set_sd),
            scale.show(each.independent_errors_sd),
        ))  # fmt: skip
    return markdown_table(header, rows)


def sources_table(group: Group) -> list[str]:
    """Return the table of where the spread comes from, if the sweep shows it."""
    scale = Scale(group.metric)
    rows = [
        (each.name, str(each.runs), scale.show(each.sd), scale.show_interval(each.interval))
        for each in sources(group)
    ]
    if not rows:
        return []
    title = f"Where the spread of {scale.title} comes from{f', {group.label}' * bool(group.label)}:"
    table = markdown_table(("varied", "runs", "sd", "95 % interval of the sd"), rows)
    alone = len(group.varied_streams) > 1 and streams_vary_alone(group)
    legends = [TOGETHER_LEGEND] if alone else []
    return [title, table, SOURCES_LEGEND, *legends]


def show_count(n: int | None) -> str:
    """Return a number of seeds as text."""
    return NONE if n is None else str(n)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned for reading as text."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def runs_csv(sweep: Sweep) -> str:
    """Return a row for every run, those that do not count included, floats at full precision."""
    labels = {run.name: group.label for group in sweep.groups for run in group.runs}
    metrics = dict.fromkeys(
        name for group in sweep.groups for run in group.runs for name in run.summary["metrics"]
    )
    seeds = map(_column, columns([run.seeds for run in sweep.runs]))
    header = ["run", "group", "problem", "seed", *seeds]
    header += [*metrics, "seconds", "weights", "predictions"]
    return _csv(header, (_run_row(run, labels.get(run.name, "")) for run in sweep.runs))


def _run_row(run: Run, label: str) -> dict[str, Any]:
    seeds = {_column(name): seed for name, seed in by_column(run.seeds).items()}
    row = {"run": run.name, "group": label, "problem": run.problem, **seeds}
    if run.seeds:
        row["seed"] = run.seed
    if not run.problem:
        fingerprints = run.summary.get("fingerprints", {})
        row |= run.summary["metrics"] | {"seconds": run.summary.get("seconds")}
        row |= {name: fingerprints.get(name) for name in ("weights", "predictions")}
    return row


def _column(name: str) -> str:
    return f"seeds.{name}" if name in STREAMS else name


def _csv(header: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, header, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return printable(text.getvalue())
