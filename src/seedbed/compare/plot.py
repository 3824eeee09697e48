"""The picture of two runs: both losses, and below them how far they are apart."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from seedbed.compare.difference import Comparison, Record
from seedbed.compare.stages import stage_of
from seedbed.errors import InputError, printable
from seedbed.record import plots
from seedbed.record.plots import BLUE, GREEN, GREY, ORANGE, Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_LETTERS = 40  # of a run's name


def draw(a: Record, b: Record, result: Comparison, out: Path) -> Path:
    """Draw two runs' losses, and below them their difference, into `out`; return it.

    Raises:
        InputError: the file cannot be written.
    """
    with plots.style():
        figure = comparison_figure(a, b, result)
        try:
            return plots.save(figure, out)
        except OSError as error:
            raise InputError(
                f"{out}: expected a file that can be written, got {error.strerror}; name another"
            ) from None


def comparison_figure(a: Record, b: Record, result: Comparison) -> "Figure":
    """Return a figure of both losses and, on a logarithmic axis, of how far they are apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    train = [plots.points(run.metrics, "train", "loss") for run in (a, b)]
    _losses(above, (a, b), train)
    if result.difference is None:
        above.set_title(f"the same bits at every step compared ({result.steps:,})")
    else:
        step, stage = result.difference.step, stage_of(result.difference.stage).name
        above.set_title(f"the runs diverge at step {step:,}: {stage}")
        label = f"first difference, step {step:,}"
        for axes in (above, below):
            axes.axvline(step, color=GREY, linewidth=1.0, linestyle=":", label=label)
    plots.finish(above)
    _difference(below, *train)
    below.set(xlabel="step", ylabel="difference of the\ntraining losses")
    plots.legend(figure, columns=2)
    return figure


def names(*folders: str) -> list[str]:
    """Return short names of run folders: their last parts, as many as it takes to differ."""
    paths = [PurePath(folder) for folder in folders]
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest + 1):
        found = [str(PurePath(*path.parts[-count:])) for path in paths]
        if len(set(found)) == len(set(folders)):
            break
    return [_shortened(printable(name)) for name in found]


def file_name(a: Record, b: Record) -> str:
    """Return a name for the picture of two runs, of theirs: comparison_A_B.png."""
    both = re.sub(r"[^\w.=,-]+", "-", "_".join(names(a.name, b.name)))
    return f"comparison_{both}.png"


def _shortened(name: str) -> str:
    return name if len(name) <= _MOST_LETTERS else f"{name[:18]}...{name[-19:]}"


def _losses(axes: "Axes", runs: Sequence[Record], train: Sequence[tuple[Array, Array]]) -> None:
    """Draw the training losses as lines, B dashed so that A shows below it; validation as marks."""
    validation = [plots.points(run.metrics, "validation", "loss") for run in runs]
    labels = [
        f"{side}: {name}".replace("$", r"\$")
        for side, name in zip("AB", names(*(run.name for run in runs)), strict=True)
    ]
    looks = ((BLUE, "-", "o"), (ORANGE, (0, (3, 3)), "x"))
    for label, curve, (color, line, _) in zip(labels, train, looks, strict=True):
        plots.line(axes, curve, f"{label}, training", color=color, ls=line)
    for label, curve, (color, _, mark) in zip(labels, validation, looks, strict=True):
        look = {"color": color, "ls": "", "marker": mark, "mfc": "none"}
        plots.line(axes, curve, f"{label}, validation", **look)
    axes.set(ylabel="loss", yscale=plots.scale([*train, *validation]))


def _difference(axes: "Axes", a: tuple[Array, Array], b: tuple[Array, Array]) -> None:
    """Draw |A - B| at the steps that both logged; zeros on a line of their own, labelled so."""
    steps, at_a, at_b = np.intersect1d(a[0], b[0], return_indices=True)
    values_a, values_b = a[1][at_a], b[1][at_b]
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        apart = np.abs(values_a - values_b)
    zero = (values_a == values_b) | (np.isnan(values_a) & np.isnan(values_b))
    seen = ~zero & np.isfinite(apart)
    if not len(steps):
        axes.set_yticks([])
        plots.write(axes, "no training loss that both logged")
        return
    low, high = _decades(apart[seen])
    axes.set(yscale="log", ylim=(10.0 ** (low - 0.2), 10.0 ** (high + 0.2)))
    axes.plot(steps[seen], apart[seen], ".", color=BLUE, markersize=4)
    shown = range(low, high + 1, max(1, (high - low) // 4)) if seen.any() else []
    ticks = {10.0**power: f"$10^{{{power}}}$" for power in shown}
    if zero.any():  # in a band below, where the axis is no longer logarithmic
        floor = 10.0 ** (low - 1)
        axes.set_ylim(bottom=10.0 ** (low - 1.5))
        axes.axhspan(10.0 ** (low - 1.5), 10.0 ** (low - 0.5), color=GREEN, alpha=0.1, linewidth=0)
        axes.plot(steps[zero], np.full(zero.sum(), floor), ".", color=GREEN, markersize=4)
        ticks = {floor: "exactly 0", **ticks}
    if zero.all():
        plots.write(axes, f"exactly 0 at each of the {len(steps):,} steps that both logged")
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()


def _decades(values: Array) -> tuple[int, int]:
    """Return the powers of ten below and above positive values; (-1, 0) without any."""
    if not values.size:
        return -1, 0
    return int(np.floor(np.log10(values.min()))), int(np.ceil(np.log10(values.max())))
