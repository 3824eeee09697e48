"""The picture of a sweep: curves with their bands, and where each run ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seedbed import record, rng
from seedbed.errors import InputError, printable
from seedbed.record import plots
from seedbed.sweeps.groups import Group, Run, Sweep
from seedbed.sweeps.summary import Scale, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

# Okabe & Ito (2008), in an order that keeps neighbours apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#777777")
_JITTER_KEY = 0
_ERROR_NAMES = {"accuracy": "validation error (%)", "mse": "validation mean squared error"}
_LOG_FROM_RATIO = 5.0
_MANY = 50  # points lie on each other
_MOST_GROUPS_NAMED = 8
_MOST_METRICS = 20
_MOST_LETTERS = 60  # of a name
_MOST_LETTERS_IN_A_ROW = 36


def draw(sweep: Sweep, summaries: Sequence[Summary], path: Path) -> None:
    """Draw `sweep.png`: a row for each metric, curves on the left, final values on the right."""
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(group.metric for group in sweep.groups))[:_MOST_METRICS]
    with plots.style():
        figure = Figure(figsize=(7.2, 0.4 + 2.7 * len(metrics)), layout="constrained")
        rows = figure.subplots(len(metrics), 2, squeeze=False, width_ratios=(3, 2))
        for (left, right), metric in zip(rows, metrics, strict=True):
            chosen = [
                pair
                for pair in zip(sweep.groups, summaries, strict=True)
                if pair[0].metric == metric
            ]
            shown = []
            for position, (group, summary) in enumerate(chosen):
                color = COLORS[position % len(COLORS)]
                shown.append(_draw_curves(left, group, color))
                _draw_values(right, position, group, summary, color)
            _finish_curves(left, metric, np.concatenate(shown))
            _finish_values(
                right, metric, [_text(group.label) or "this sweep" for group, _ in chosen]
            )
        plots.save(figure, path)


def curves(group: Group) -> tuple[Floats, Floats]:
    """Return the validation curves of a group, one run for each seed.

    Returns:
        Epochs (n,) that every run reached, and the metric, (runs, n).
    """
    runs = [runs[0] for runs in group.replicates.values()]
    tables = [_validation_curve(run) for run in runs]
    epochs = sorted(set.intersection(*(set(table) for table in tables)))
    values = [[table[epoch] for epoch in epochs] for table in tables]
    return np.array(epochs), np.array(values).reshape(len(runs), len(epochs))


def _validation_curve(run: Run) -> dict[float, float]:
    """Return the validation metric by epoch; empty where the table cannot be read."""
    try:
        rows = record.read_metrics(run.folder)
        return {
            float(row["epoch"]): float(row["metric"])
            for row in rows
            if row["phase"] == "validation" and row["metric"]
        }
    except (InputError, ValueError):
        return {}


def _draw_curves(axes: "Axes", group: Group, color: str) -> Floats:
    """Draw the median with the middle half of the runs (dark) and all of them (light).

    Returns:
        What was drawn, float64 (values,): nothing if there are fewer than two epochs.
    """
    epochs, values = curves(group)
    shown = _errors(group.metric, values)
    if len(epochs) < 2:
        return np.empty(0)
    low, first, median, third, high = np.quantile(shown, [0, 0.25, 0.5, 0.75, 1], axis=0)
    axes.fill_between(epochs, low, high, color=color, alpha=0.15, linewidth=0)
    axes.fill_between(epochs, first, third, color=color, alpha=0.3, linewidth=0)
    axes.plot(epochs, median, color=color, label=_name(group), marker="o", markersize=2.5)
    return shown.ravel()


def _draw_values(axes: "Axes", position: int, group: Group, summary: Summary, color: str) -> None:
    """Draw each run's final value and, of several, the mean with its interval."""
    factor = 100.0 if Scale(group.metric).percent else 1.0
    values = factor * np.array(list(group.values.values()))
    jitter = rng.uniform(_JITTER_KEY, np.arange(len(values)), 1)[:, 0] - 0.5
    axes.plot(
        position - 0.1 + 0.3 * jitter, values, "o", color=color,
        alpha=0.6 if len(values) <= _MANY else 0.2,
        markersize=4, markeredgewidth=0,
    )  # fmt: skip
    if summary.interval is not None:
        mean = factor * summary.mean
        bars = np.abs(factor * np.array(summary.interval) - mean)[:, None]
        axes.errorbar(position + 0.2, mean, bars, fmt="o", color="black", capsize=2, markersize=3)


def _finish_curves(axes: "Axes", metric: str, shown: Floats) -> None:
    axes.set(xlabel="epoch", ylabel=_ERROR_NAMES.get(metric.split("_")[-1], _text(metric)))
    axes.set_title("median, middle half and range of the runs")
    if not shown.size:
        axes.text(0.5, 0.5, "fewer than two validations", ha="center", transform=axes.transAxes)
        return
    axes.locator_params(axis="x", integer=True)
    if 0 < shown.min() < shown.max() / _LOG_FROM_RATIO:
        _plain_log_axis(axes)
    if len(axes.lines) <= _MOST_GROUPS_NAMED:
        axes.legend()


def _finish_values(axes: "Axes", metric: str, labels: Sequence[str]) -> None:
    axes.set(ylabel=_text(Scale(metric).title), xlim=(-0.6, len(labels) - 0.4))
    axes.set_title("runs, mean, 95 % interval")
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(labels)), labels)
    if sum(map(len, labels)) > _MOST_LETTERS_IN_A_ROW:
        axes.tick_params(axis="x", labelrotation=30)
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def _plain_log_axis(axes: "Axes") -> None:
    """Make the y axis logarithmic, with ticks at 1, 2 and 5 as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _name(group: Group) -> str:
    count = f"n = {len(group.values)}"
    return f"{_text(group.label)} ({count})" if group.label else count


def _text(name: str) -> str:
    """Return a name of a record as the letters it has, not as mathematics."""
    return printable(name[:_MOST_LETTERS]).replace("$", r"\$")


def _errors(metric: str, values: Floats) -> Floats:
    """Return what a logarithmic axis shows best: 100 - accuracy in per cent, or the error."""
    return 100.0 * (1.0 - values) if Scale(metric).percent else values
