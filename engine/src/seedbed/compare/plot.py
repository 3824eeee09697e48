"""The picture of two runs: both losses, and below them how far they are apart."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np

from seedbed.compare import causes
from seedbed.compare.difference import Comparison, Difference, Record
from seedbed.compare.stages import stage_of
from seedbed.errors import InputError, printable
from seedbed.record import plots
from seedbed.record.plots import BLUE, GREEN, GREY, ORANGE, Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LETTERS_IN_FILE, _LETTERS_IN_LEGEND = 40, 28  # of a run's name
_MARKED = 20  # differences that are few enough for large marks


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
        above.set_title(_title(a, b, result.difference))
        step, label = result.difference.step, f"first difference, step {result.difference.step:,}"
        for axes in (above, below):
            axes.axvline(step, color=GREY, linewidth=1.0, linestyle=":", label=label)
    plots.finish(above)
    _difference(below, *train)
    below.set(xlabel="step", ylabel="difference of the\ntraining losses")
    plots.legend(figure, columns=2)
    return figure


def _title(a: Record, b: Record, difference: Difference) -> str:
    """Say where two runs diverge and, below it, what differs that explains it best."""
    place = f"step {difference.step:,}: {stage_of(difference.stage).name}"
    lines = [f"the runs diverge at {place}"]
    lines += map(causes.in_words, causes.rank(difference, causes.changes(a, b))[:1])
    return "\n".join(lines).replace("$", r"\$")


def names(*folders: str) -> list[str]:
    """Return short names of run folders: their last parts, as many as it takes to differ."""
    paths = [PurePath(folder) for folder in folders]
    longest = max(len(path.parts) for path in paths)
    for count in range(1, longest + 1):
        found = [str(PurePath(*path.parts[-count:])) for path in paths]
        if len(set(found)) == len(set(folders)):
            break
    return [printable(name) for name in found]


def file_name(a: Record, b: Record) -> str:
    """Return a name for the picture of two runs, of theirs: comparison_A_B.png."""
    both = "_".join(_shortened(name, _LETTERS_IN_FILE) for name in names(a.name, b.name))
    both = re.sub(r"[^\w.=,-]+", "-", both)
    return f"comparison_{both}.png"


def _shortened(name: str, most: int) -> str:
    half = most // 2 - 2
    return name if len(name) <= most else f"{name[:half]}...{name[-half - 1 :]}"


def _losses(axes: "Axes", runs: Sequence[Record], train: Sequence[tuple[Array, Array]]) -> None:
    """Draw the training losses as lines, B dashed so that A shows below it; validation as marks."""
    validation = [plots.points(run.metrics, "validation", "loss") for run in runs]
    labels = [
        f"{side}: {_shortened(name, _LETTERS_IN_LEGEND)}".replace("$", r"\$")
        for side, name in zip("AB", names(*(run.name for run in runs)), strict=True)
    ]
    looks = ((BLUE, "-", "o"), (ORANGE, (0, (3, 3)), "x"))
    curves = zip(labels, train, validation, looks, strict=True)
    for label, trained, validated, (color, line, mark) in curves:
        plots.line(axes, trained, f"{label}, training", color=color, ls=line)
        look = {"color": color, "ls": "", "marker": mark, "mfc": "none", "markersize": 6}
        plots.line(axes, validated, f"{label}, validation", **look)
    axes.set(ylabel="loss")
    plots.fit_scale(axes, [*train, *validation])


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
    size = 6 if seen.sum() <= _MARKED else 4
    axes.plot(steps[seen], apart[seen], ".", color=BLUE, markersize=size)
    ticks = _ticks(low, high) if seen.any() else {}
    if zero.any():  # in a band below, where the axis is no longer logarithmic
        floor = 10.0 ** (low - 1)
        axes.set_ylim(bottom=10.0 ** (low - 1.5))
        axes.axhspan(10.0 ** (low - 1.5), 10.0 ** (low - 0.5), color=GREEN, alpha=0.1, linewidth=0)
        axes.plot(steps[zero], np.full(zero.sum(), floor), ".", color=GREEN, markersize=4)
        ticks = {floor: "exactly 0", **ticks}
    if zero.all():
        every = "the one step" if len(steps) == 1 else f"each of the {len(steps):,} steps"
        plots.write(axes, f"exactly 0 at {every} that both logged")
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.minorticks_off()


def _ticks(low: int, high: int) -> dict[float, str]:
    """Return what to write where between two powers of ten; in a single decade 2 and 5 as well."""
    powers = range(low, high + 1, max(1, (high - low) // 4))
    if low < -3 or high > 4:
        return {10.0**power: f"$10^{{{power}}}$" for power in powers}
    digits = (1, 2, 5) if high - low == 1 else (1,)
    values = [digit * 10.0**power for power in powers for digit in digits]
    return {value: f"{value:g}" for value in values if value <= 10.0**high}


def _decades(values: Array) -> tuple[int, int]:
    """Return the powers of ten below and above positive values; (-1, 0) without any."""
    if not values.size:
        return -1, 0
    return int(np.floor(np.log10(values.min()))), int(np.ceil(np.log10(values.max())))
