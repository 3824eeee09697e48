"""The picture of a sweep: each run during training, and where it ended."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import plots
from seedbed.sweeps.groups import Run, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe & Ito (2008), in an order that keeps neighbours apart.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#777777")
_MOST_LETTERS = 24  # of a name


def draw(sweep: Sweep, path: Path) -> None:
    """Draw validation during training on the left, final values on the right.

    Where no run was validated twice, there is no left panel. Groups with another metric than the
    first one are left out: they would need axes of their own.
    """
    from matplotlib.figure import Figure

    metric = sweep.groups[0].metric
    groups = [group for group in sweep.groups if group.metric == metric]
    curves = [[_curve(run, metric) for run in group.runs] for group in groups]
    has_curves = any(len(curve) > 1 for each in curves for curve in each)
    height = max(2.6, 0.18 * sum(2 + len(group.varied) for group in groups) + 1.0)
    with plots.style():
        figure = Figure(figsize=(7.2 if has_curves else 4.4, height), layout="constrained")
        *left, right = figure.subplots(1, 1 + has_curves, squeeze=False)[0]
        for axes in left:
            _draw_curves(axes, curves)
            axes.set(xlabel="step", ylabel=f"validation {_text(metric.partition('_')[2])}")
            axes.set_title("each run, and their mean")
        names = []
        for number, group in enumerate(groups):
            style = {"color": _COLORS[number % len(_COLORS)]}
            values, mean = list(group.values.values()), group.summary
            right.plot(values, [number - 0.12] * len(values), "o", alpha=0.5, mew=0, **style)
            if mean.interval is not None:
                ends = np.abs(np.array(mean.interval) - mean.mean)[:, None]
                right.errorbar(mean.mean, number + 0.12, xerr=ends, fmt="D", capsize=3, **style)
            lines = [*map(_text, filter(None, group.label.split(", "))), f"n={mean.n}"]
            names.append("\n".join(lines))
        right.set_yticks(range(len(groups)), names)
        right.set(ylim=(len(groups) - 0.4, -0.6), xlabel=_text(metric.replace("_", " ")))
        right.set_title("final, with 95 % interval")
        right.locator_params(axis="x", nbins=5)
        right.grid(visible=False, axis="y")
        plots.save(figure, path)


def _curve(run: Run, metric: str) -> dict[float, float]:
    """Return the values of a run's validations by step; {} where the table cannot be read."""
    name = metric.partition("_")[2]
    try:
        rows = [row for row in record.read_metrics(run.folder) if row["phase"] == "validation"]
        return {float(row["step"]): float(row[name]) for row in rows if row.get(name)}
    except (InputError, ValueError):
        return {}


def _draw_curves(axes: "Axes", groups: list[list[dict[float, float]]]) -> None:
    """Draw each run to its own end, and a group's mean as far as all of its runs went."""
    for number, curves in enumerate(groups):
        color = _COLORS[number % len(_COLORS)]
        alpha = max(0.1, min(0.5, 3.0 / len(curves)))
        for curve in curves:
            axes.plot(list(curve), list(curve.values()), color=color, alpha=alpha, linewidth=0.8)
        steps = sorted(set.intersection(*map(set, curves)))
        means = [np.mean([curve[step] for curve in curves]) for step in steps]
        axes.plot(steps, means, color=color, linewidth=1.8, marker="o", markersize=2.5)
    values = [value for curves in groups for curve in curves for value in curve.values()]
    plots.scale(axes, np.array(values))


def _text(name: str) -> str:
    return plots.literal(name[:_MOST_LETTERS])
