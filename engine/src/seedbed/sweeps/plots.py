"""The picture of a sweep: where each run ended, and the mean of each group."""

from pathlib import Path

import numpy as np

from seedbed.record import plots
from seedbed.sweeps.groups import Sweep

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
            values, mean = list(group.values.values()), group.summary
            axes.plot(values, [number - 0.12] * len(values), "o", alpha=0.5, mew=0, c=plots.BLUE)
            if mean.interval is not None:
                ends = np.abs(np.array(mean.interval) - mean.mean)[:, None]
                where = (mean.mean, number + 0.12)
                axes.errorbar(*where, xerr=ends, fmt="D", capsize=3, color=plots.BLUE)
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
