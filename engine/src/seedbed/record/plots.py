"""The picture of a run, and how every picture of Seedbed looks.

Figures are drawn without pyplot: no global state, no window, the same picture on every machine.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import InputError, printable
from seedbed.record.files import write_atomically
from seedbed.record.folder import read_summary
from seedbed.record.tables import Row, read_metrics
from seedbed.record.untrusted import read_config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]  # steps and values, (n,) each

# Okabe & Ito (2008): told apart by everyone.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.fontsize": 8,
    "legend.edgecolor": "none",
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "agg.path.chunksize": 10_000,  # a curve of a million steps is drawn in pieces
}
_MOST_DOTS = 20  # a curve of so many points shows each as a dot
_LOG_FROM_RATIO = 20.0


def loss_curve(folder: Path) -> Path | None:
    """Draw a run's loss and metric into `loss_curve.png` in its folder; return its path.

    Where neither was logged, there is no picture, also none of an earlier attempt.

    Raises:
        InputError: the folder is no run, or its metrics are damaged.
        OSError: the file cannot be written.
    """
    summary, config = read_summary(folder), read_config(folder)
    sections = [config.get(section) for section in ("model", "data")]
    named = [str(each.name) for each in sections if hasattr(each, "name") and each.name]
    title = " on ".join(named) or folder.resolve().name
    title += f", seed {config.get('seed')}, {summary.get('status')}"
    rows, path = read_metrics(folder), folder / "loss_curve.png"
    names = dict.fromkeys(("loss", str(summary.get("metric_name", "loss"))))
    shown = [name for name in names if any(row.get(name) for row in rows)]
    if not shown:
        path.unlink(missing_ok=True)
        return None
    with style():
        return save(loss_figure(rows, shown, title), path)


def loss_figure(rows: Sequence[Row], names: Sequence[str], title: str) -> "Figure":
    """Return a figure with a panel for each of some columns of metrics.csv."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(names) + 0.4, 2.9), layout="constrained")
    panels = figure.subplots(1, len(names), sharex=True, squeeze=False)[0]
    for axes, name in zip(panels, names, strict=True):
        _draw(axes, {phase: points(rows, phase, name) for phase in ("train", "validation", "test")})
        axes.set(xlabel="step", ylabel=name)
        axes.locator_params(axis="x", nbins=7, integer=True)
    panels[0].set_title(printable(title), parse_math=False)
    legend(figure, columns=4 if len(names) > 1 else 2)
    return figure


def _draw(axes: "Axes", curves: dict[str, Curve]) -> None:
    """Draw training, which is of single batches, with its running mean, validation and test."""
    steps, values = curves["train"]
    dots: dict[str, Any] = {"marker": "o", "markersize": 3}
    if len(steps) > _MOST_DOTS:
        window = max(5, len(steps) // 30)
        axes.plot(steps, values, color=BLUE, alpha=0.4, linewidth=0.7, label="training batches")
        mean = running_mean(steps, values, window)
        axes.plot(*mean, color=BLUE, label=f"mean of {window} batches")
    elif len(steps):
        axes.plot(steps, values, color=BLUE, label="training batches", **dots)
    if len(curves["validation"][0]):
        axes.plot(*curves["validation"], color=ORANGE, marker="o", label="validation")
    if len(curves["test"][0]):  # around the validation of the same step
        look: dict[str, Any] = {"ls": "", "marker": "D", "mfc": "none", "markersize": 7}
        axes.plot(*curves["test"], color=GREEN, label="test", **look)
    broken = [step for steps, values in curves.values() for step in steps[~np.isfinite(values)]]
    if broken:  # otherwise a curve that just ends could be that of a run which was stopped
        axes.axvline(min(broken), color=GREY, ls=":", label="not finite")
    every = np.concatenate([values[np.isfinite(values)] for _, values in curves.values()])
    if every.size and 0.0 < every.min() < every.max() / _LOG_FROM_RATIO:
        axes.set_yscale("log")


def points(rows: Iterable[Row], phase: str, name: str) -> Curve:
    """Return the steps and values of one phase in metrics.csv.

    Raises:
        InputError: a cell is no number.
    """
    own = [row for row in rows if row["phase"] == phase and row.get(name)]
    cells = [(row["step"], row[name]) for row in own]
    try:
        table = np.array(cells, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise InputError(f"metrics.csv: expected numbers, got {error}; replay the run") from None
    return table[:, 0], table[:, 1]


def running_mean(steps: NDArray[np.float64], values: NDArray[np.float64], rows: int) -> Curve:
    """Return the means of `rows` neighbours, never of fewer, at the middle of their steps."""
    window = np.full(rows, 1.0 / rows)
    return np.convolve(steps, window, mode="valid"), np.convolve(values, window, mode="valid")


def style() -> Any:
    """Return a context in which figures look like Seedbed's, whatever the user's matplotlibrc."""
    from matplotlib.style import context

    return context(["default", _STYLE])


def legend(figure: "Figure", columns: int = 5) -> None:
    """Name what all panels show once, below them, where it lies over no curve."""
    named: dict[str, Any] = {}
    for axes in figure.axes:
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(map(str, labels), handles, strict=True))
    if named:
        figure.legend(named.values(), named, loc="outside lower center", ncols=columns)


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as a PNG file, atomically; return its path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=200, metadata={"Software": None})
    write_atomically(path, picture.getvalue())
    return path
