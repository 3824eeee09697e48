"""A report on sweeps as text, sweep.csv and sweep.png."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from seedbed import record
from seedbed.errors import InputError, printable
from seedbed.record import plots, text
from seedbed.sweeps.groups import TEST, Sweep, pairs, varying

_MOST_LETTERS = 24  # of a setting in a plot
_MOST_SHOWN = 12  # differences on a line
# in the order of a line
_KINDS = ("configuration", "split", "result", "code", "environment")


def describe(report: Mapping[str, Any]) -> str:
    """Return the report as text for a terminal."""
    left_out = [
        f"  {' '.join(f'{x}: {y}'.split())}" for x, y in report["left_out"].items()
    ]
    title = f"{len(left_out)} of {report['runs']} runs are left out"
    parts = [
        report["warning"],
        "\n".join([title, *left_out]) if left_out else "",
        _table(report["groups"], len(report["sweeps"]) > 1),
        "\n".join(line for each in report["comparisons"] for line in comparison(each)),
        "\n".join(_best(report)),
        *report["notes"],
    ]
    return printable("\n\n".join(filter(None, parts)))


def _best(report: Mapping[str, Any]) -> Iterator[str]:
    for row in (row for row in report["groups"] if row["rank"] == 1):
        of = f"{row['sweep']} " if len(report["sweeps"]) > 1 else ""
        yield (
            f"best by {row['metric']}: {of}{', '.join(pairs(row['settings']))}".rstrip(
                ": "
            )
        )
    if report["final"] is not None:
        estimates = report["final"]["metrics"]
        values = [f"{name} {_estimate(each)}" for name, each in estimates.items()]
        yield "its test values: " + ("; ".join(values) or "none")
    elif any(
        row["mean"]["n"] and not row["metric"].startswith("test_")
        for row in report["groups"]
    ):
        yield (
            "values are those of validation; --final shows the test values of the best"
        )


def _estimate(of: Mapping[str, Any]) -> str:
    show = _formatter([of["sd"]])
    ends = " to ".join(map(show, of["interval"] or ()))
    return (
        f"{show(of['mean'])} (n={of['n']}{f', 95 % interval {ends}' if ends else ''})"
    )


def comparison(compared: Mapping[str, Any]) -> Iterator[str]:
    """Yield a comparison as lines: its verdict, and what else may explain it."""
    yield _verdict(compared)
    yield from (f"  not comparable: {reason}" for reason in compared["not_comparable"])
    if facts := list(_facts(compared)):
        yield f"  {'; '.join(facts)}"
    yield from (f"  caution: {line}" for line in compared["cautions"])
    changes = [
        c for c in compared["differs"] if c["alters_bits"] or c["kind"] == "result"
    ]
    changes.sort(key=lambda change: _KINDS.index(change["kind"]))
    shown = [f"{c['key']} {_short(c['a'])} -> {_short(c['b'])}" for c in changes]
    more = (
        [f"{len(shown) - _MOST_SHOWN} more (--json)"]
        if len(shown) > _MOST_SHOWN
        else []
    )
    yield (
        "  differs:"
        f" {', '.join([*shown[:_MOST_SHOWN], *more]) or 'nothing that is recorded'}"
    )


def _short(value: object) -> str:
    shown = " ".join(text.show(value).split()) if value is not None else "-"
    return shown if len(shown) <= 24 else f"{shown[:21]}..."


def _verdict(compared: Mapping[str, Any]) -> str:
    line = "{b} against {a}: {verdict}".format(**compared)
    d = compared["difference"]
    if d is None:
        return line
    unit = "paired seeds" if compared["paired"] else "unpaired seeds on each side"
    show = _formatter([d["sd"]])
    ends = " to ".join(show(end, "+") for end in d["interval"] or ())
    percent = f"{100 * compared['confidence']:.4g} %"
    interval = f"{percent} interval {ends}" if ends else "no spread"
    line += f", {show(d['mean'], '+')} ({interval}, {d['n']} {unit})"
    if compared["decided_by"] == "sequential":
        ends = " to ".join(
            show(end, "+") for end in compared["sequential_interval"] or ()
        )
        line += (
            "; decided by the sequential interval,"
            f" {ends or 'which takes more paired seeds'}"
        )
    if needed := compared["seeds_to_decide"]:
        line += (
            f"; if this is the true difference, new sweeps of {needed} seeds each would"
            " decide (seeds that are added after this look need the sequential"
            " interval)"
        )
    return line


def _facts(compared: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the seeds at hand can show."""
    if compared["correlation"] is not None:
        yield f"correlation of pairs {compared['correlation']:.2f}"
    if compared["variance_ratio"] is not None:
        yield (
            f"pairs have {100 * compared['variance_ratio']:.3g} % of the variance of"
            " unpaired seeds"
        )
    if compared["a_wins"] is not None:
        yield f"{compared['a']} wins in {100 * compared['a_wins']:.0f} % of seeds"
    if (least := compared["smallest_p"]) is not None:
        yield (
            f"no test without the assumption of normal values can reach p < {least:.2g}"
        )


def _table(rows: Sequence[Mapping[str, Any]], names_sweeps: bool) -> str:
    """Return the groups as a Markdown table, with the means of their other metrics."""
    if not rows:
        return ""
    show = _formatter([row["mean"]["sd"] for row in rows])
    others = _other_metrics(rows)
    keys = [key.removesuffix(".name") for key in rows[0]["settings"]]
    head = [
        "metric",
        "n",
        "mean",
        "sd",
        "95 % interval",
        *(f"mean {name}" for name in others),
    ]
    lines = [[*(["sweep"] if names_sweeps else []), *keys, *head]]
    for row in sorted(rows, key=lambda row: row["rank"] or 0):
        sweep = [row["sweep"]] if names_sweeps else []
        lines.append([*sweep, *_cells(row, others, show)])
    # Empty cells make a bar at both ends of a line; a rule goes below the header.
    top, *body = [
        line.strip() for line in text.aligned([["", *x, ""] for x in lines], " | ")
    ]
    return "\n".join([top, "".join(c if c == "|" else "-" for c in top), *body])


def _other_metrics(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the metrics that groups have beside those by which they are ranked."""
    reported = {row["metric"] for row in rows}
    metrics = dict.fromkeys(name for row in rows for name in row["means"])
    return [name for name in metrics if name not in reported]


def _cells(
    row: Mapping[str, Any], others: Sequence[str], show: Callable[..., str]
) -> list[str]:
    """Return the cells of a group: settings, estimate, and means of other metrics."""
    of = row["mean"]
    sd = "-" if of["sd"] is None else show(of["sd"])
    interval = " to ".join(map(show, of["interval"] or ())) or "-"
    cells = [*map(str, row["settings"].values()), row["metric"] or "-", str(of["n"])]
    cells += ["-" if of["mean"] is None else show(of["mean"]), sd, interval]
    means = {name: f"{value:#.4g}".rstrip(".") for name, value in row["means"].items()}
    return cells + [means.get(name, "-") for name in others]


def _formatter(sds: Iterable[float | None]) -> Callable[..., str]:
    """Return a function that formats values to two digits of their smallest
    deviation."""
    smallest = min((sd for sd in sds if sd), default=0.0)
    decimals = 1 - math.floor(math.log10(smallest)) if smallest else 99
    form = f".{max(0, decimals)}f" if decimals < 10 else ".4g"
    return lambda value, sign="": f"{value:{sign}{form}}"


def write(sweep: Sweep, metric: str | None = None) -> None:
    """Write sweep.csv and sweep.png, or for a `metric` only sweep_METRIC.png."""
    try:
        if metric is None:
            table = runs_table(sweep)
            content = text.as_csv([*table], table.to_dict("records"))
            record.write_atomically(sweep.folder / "sweep.csv", content)
        if any(group.runs for group in sweep.groups):
            name = f"sweep_{metric.replace('/', '_')}.png" if metric else "sweep.png"
            draw(sweep, sweep.folder / name)
    except OSError as error:
        raise InputError(
            f"{sweep.folder}: expected a folder to write into, got {error.strerror}"
        ) from None


def draw(sweep: Sweep, path: Path) -> None:
    """Draw the runs and the mean of each group that reports the first group's
    metric."""
    from matplotlib.figure import Figure  # importing it takes half a second

    counted = [group for group in sweep.groups if group.runs]
    metric = counted[0].metric
    groups = [group for group in counted if group.metric == metric]
    keys = varying([group.settings for group in sweep.groups])
    height = max(2.6, 0.18 * (2 + len(keys)) * len(groups) + 1.0)
    with plots.style():
        figure = Figure(figsize=(4.8, height), layout="constrained")
        axes = figure.subplots()
        names = []
        for number, group in enumerate(groups):
            values = group.values.to_list()
            mean = group.mean
            axes.plot(
                values,
                [number - 0.12] * len(values),
                "o",
                alpha=0.5,
                mew=0,
                c=plots.BLUE,
            )
            if mean.interval is not None:
                axes.plot(mean.mean, number + 0.12, "D", c=plots.BLUE)
                axes.plot(mean.interval, [number + 0.12] * 2, "-|", c=plots.BLUE)
            settings = (
                part[:_MOST_LETTERS] for part in group.label(keys).split(", ") if part
            )
            names.append("\n".join([*map(plots.literal, settings), f"n={mean.n}"]))
        axes.set_yticks(range(len(groups)), names)
        axes.set(
            ylim=(len(groups) - 0.4, -0.6),
            xlabel=plots.literal(metric.replace("_", " ")),
        )
        axes.set_title("runs, mean over seeds, 95 % interval", loc="right")
        axes.locator_params(axis="x", nbins=5)
        axes.grid(visible=False, axis="y")
        plots.save(figure, path)


def runs_table(sweep: Sweep) -> pd.DataFrame:
    """Return a row per run: its seeds and settings that vary, and the metrics of
    finished runs.

    Test values are left out: `--final` shows those of the best group.
    """
    configured = pd.DataFrame(
        [{**run.settings, **run.seeds} for run in sweep.runs], dtype=object
    )
    results = pd.DataFrame(
        [
            {
                n: v
                for n, v in run.metrics.items()
                if not n.startswith(TEST) and not run.failure
            }
            for run in sweep.runs
        ],
        dtype=object,
    )
    known = configured[[bool(run.config) for run in sweep.runs]].map(repr)
    varied = [key for key in known if known[key].nunique() > 1]
    keys = [key for key in varied if not known[key].equals(known.get("seed"))]
    left_out = sweep.left_out
    table = pd.DataFrame(
        {
            "run": [run.name for run in sweep.runs],
            "problem": [left_out.get(run.name, "") for run in sweep.runs],
            "seed": configured.get("seed", ""),
        },
        dtype=object,
    )
    weights = pd.Series(
        [run.weights for run in sweep.runs], name="weights", dtype=object
    )
    table = pd.concat([table, configured[keys], results, weights], axis=1)
    # NaN: the run lacks the key
    return table.where(table.map(lambda cell: cell == cell), "")
