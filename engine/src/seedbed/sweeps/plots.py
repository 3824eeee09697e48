"""The picture of a sweep: where each run ended, and the mean of each group."""

from pathlib import Path
from typing import Any

import numpy as np

from seedbed.record import plots
from seedbed.sweeps.groups import Sweep

# Okabe & Ito (2008), in an order that keeps neighbours apart.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#777777")
_MOST_LETTERS = 24  # of a name


def draw(sweep: Sweep, path: Path) -> None:
    """Draw the final value of each run, and each group's mean with its interval.

    Groups with another metric than the first one are left out: they would need axes of their own.
    """
    from matplotlib.figure import Figure

    metric = sweep.groups[0].metric
    groups = [group for group in sweep.groups if group.metric == metric]
    height = max(2.6, 0.18 * sum(2 + len(group.varied) for group in groups) + 1.0)
    with plots.style():
        figure = Figure(figsize=(4.8, height), layout="constrained")
        axes, names = figure.subplots(), []
        for number, group in enumerate(groups):
            style: dict[str, Any] = {"color": _COLORS[number % len(_COLORS)]}
            values, mean = list(group.values.values()), group.summary
            axes.plot(values, [number - 0.12] * len(values), "o", alpha=0.5, mew=0, **style)
            if mean.interval is not None:
                ends = np.abs(np.array(mean.interval) - mean.mean)[:, None]
                axes.errorbar(mean.mean, number + 0.12, xerr=ends, fmt="D", capsize=3, **style)
            lines = [*map(_text, filter(None, group.label.split(", "))), f"n={mean.n}"]
            names.append("\n".join(lines))
        axes.set_yticks(range(len(groups)), names)
        axes.set(ylim=(len(groups) - 0.4, -0.6), xlabel=_text(metric.replace("_", " ")))
        axes.set_title("final, with 95 % interval")
        axes.locator_params(axis="x", nbins=5)
        axes.grid(visible=False, axis="y")
        plots.save(figure, path)


def _text(name: str) -> str:
    return plots.literal(name[:_MOST_LETTERS])
