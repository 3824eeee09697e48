"""The plot of a sweep: the final metric of each run, and the mean of each group."""

from pathlib import Path

from matplotlib.figure import Figure

from seedbed.record import plots
from seedbed.sweeps.groups import Sweep

_MOST_LETTERS = 24  # of a setting


def draw(sweep: Sweep, path: Path) -> None:
    """Draw the runs and the mean of each group that reports the first group's metric."""
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
