"""Every picture of a run, and of two runs beside each other.

Figures are drawn without pyplot: no global state, no window, the same picture on every machine.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from seedbed import record
from seedbed.compare import Comparison, Record
from seedbed.compare.stages import STAGES
from seedbed.errors import InputError
from seedbed.record import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

# Okabe & Ito (2008): told apart by everyone.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#777777"
PHASES = ("train", "validation", "test")
LABELS = {"accuracy": "accuracy (%)", "mse": "mean squared error"}
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.edgecolor": "none",
    "legend.framealpha": 0.7,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "agg.path.chunksize": 10_000,  # a curve of a million steps is drawn in pieces
}
_MOST_ROWS_DRAWN_ALONE = 60
_LOG_FROM_RATIO = 20.0


def loss_curve(folder: Path) -> Path:
    """Draw a run's losses and metric into `loss_curve.png` in its folder; return its path.

    Raises:
        InputError: the folder is no run, or its metrics are damaged.
        OSError: the file cannot be written.
    """
    summary, config = record.read_summary(folder), record.read_config(folder)
    title = f"{config.model.name} on {config.data.name}, seed {config.seed}"
    if summary.get("status") in ("failed", "interrupted"):
        title += f", {summary['status']} at step {summary.get('steps', 0)}"
    metric_name = str(summary.get("metric_name", "metric"))
    with style():
        figure = loss_figure(record.read_metrics(folder), metric_name, title)
        return save(figure, folder / "loss_curve.png")


def loss_figure(rows: Sequence[Row], metric_name: str, title: str) -> "Figure":
    """Return a figure of the loss and, where it is not the loss, the metric against the step.

    Args:
        rows: of metrics.csv.
        metric_name: accuracy (0 to 1, drawn in percent), mse, or another.
    """
    from matplotlib.figure import Figure

    loss_is_metric = metric_name == "mse" and all(
        np.allclose(points(rows, phase, "loss")[1], points(rows, phase, "metric")[1], rtol=1e-3)
        for phase in PHASES
    )
    names = ["loss"] if loss_is_metric else ["loss", "metric"]
    figure = Figure(figsize=(3.4 * len(names) + 0.4, 2.7), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        is_share = (name, metric_name) == ("metric", "accuracy")
        curves = {phase: points(rows, phase, name, 100.0 if is_share else 1.0) for phase in PHASES}
        _curves(axes, curves)
        label = metric_name if loss_is_metric or name == "metric" else "loss"
        axes.set(xlabel="step", ylabel=LABELS.get(label, label))
        if is_share:
            _fit_percent(axes, curves)
        else:
            axes.set_yscale(_scale(curves.values()))
        _finish(axes, legend=name == "loss")
    figure.axes[0].set_title(title)
    return figure


def comparison(a: Record, b: Record, result: Comparison, out: Path) -> Path:
    """Draw two runs' losses, and below them their difference, into `out`; return it.

    Raises:
        InputError: the file cannot be written.
    """
    with style():
        figure = comparison_figure(a, b, result)
        try:
            return save(figure, out)
        except OSError as error:
            raise InputError(
                f"{out}: expected a file that can be written, got {error.strerror}; name another"
            ) from None


def comparison_figure(a: Record, b: Record, result: Comparison) -> "Figure":
    """Return a figure of both losses and, on a logarithmic axis, of how far they are apart."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    train = [points(run.metrics, "train", "loss") for run in (a, b)]
    validation = [points(run.metrics, "validation", "loss") for run in (a, b)]
    for name, curve, line in zip("AB", train, ("-", (0, (3, 3))), strict=True):
        _line(above, curve, f"{name}, training", color=BLUE if name == "A" else ORANGE, ls=line)
    for name, curve, mark in zip("AB", validation, "ox", strict=True):
        color = BLUE if name == "A" else ORANGE
        _line(above, curve, f"{name}, validation", color=color, ls="", marker=mark, mfc="none")
    above.set(ylabel="loss", yscale=_scale([*train, *validation]))
    _finish(above)
    _difference(below, *train)
    below.set(xlabel="step", ylabel="|A \N{MINUS SIGN} B|")
    if result.difference is None:
        above.set_title(f"steps compared: {result.steps:,}, all the same")
    else:
        step, stage = result.difference.step, STAGES[result.difference.stage]
        above.set_title(f"first difference: step {step:,}, {stage.name} ({stage.phase})")
        for axes in (above, below):
            axes.axvline(step, color=GREY, linewidth=0.8, linestyle=":")
    return figure


def points(rows: Iterable[Row], phase: str, name: str, scale: float = 1.0) -> tuple[Array, Array]:
    """Return the steps (n,) and values (n,) of one phase in metrics.csv, as float64.

    Raises:
        InputError: a cell is no number.
    """
    cells = [(row["step"], row[name]) for row in rows if row["phase"] == phase]
    try:
        table = np.array(cells, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise InputError(f"metrics.csv: expected numbers, got {error}; replay the run") from None
    return table[:, 0], table[:, 1] * scale


def running_mean(steps: Array, values: Array, rows: int) -> tuple[Array, Array]:
    """Return the mean of each `rows` consecutive values, at the step in their middle."""
    means = np.convolve(values, np.ones(rows) / rows, mode="valid")
    return steps[(rows - 1) // 2 :][: len(means)], means


def style() -> Any:
    """Return a context in which figures look like Seedbed's."""
    # From matplotlib's own defaults, so that a user's matplotlibrc does not change the pictures.
    from matplotlib.style import context

    return context(["default", _STYLE])


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as a PNG file, atomically; return its path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=200, metadata={"Software": None})
    record.write_atomically(path, picture.getvalue())
    return path


def _curves(axes: "Axes", curves: dict[str, tuple[Array, Array]]) -> None:
    train, rows = curves["train"], len(curves["train"][0])
    if rows > _MOST_ROWS_DRAWN_ALONE:
        window = rows // 30
        _line(axes, train, "", color=BLUE, alpha=0.25, linewidth=0.6)
        label = f"training (mean of {window})"
        _line(axes, running_mean(*train, window), label, color=BLUE)
    else:
        _line(axes, train, "training", color=BLUE)
    _line(axes, curves["validation"], "validation", color=ORANGE, marker="o", markersize=4)
    _line(axes, curves["test"], "test", color=GREEN, ls="", marker="D")
    broken = [step for steps, values in curves.values() for step in steps[~np.isfinite(values)]]
    if broken:
        axes.axvline(min(broken), color=GREY, linewidth=0.8, linestyle=":", label="not finite")


def _line(axes: "Axes", curve: tuple[Array, Array], label: str, **look: Any) -> None:
    if not len(curve[0]):
        return
    if len(curve[0]) == 1:
        look.setdefault("marker", "o")  # a line through one point is invisible
    axes.plot(*curve, label=label or "_", **look)


def _finish(axes: "Axes", legend: bool = True) -> None:
    """Add the legend, and ticks at whole steps; say so if there is nothing to see."""
    if axes.lines:
        axes.locator_params(axis="x", nbins=7, integer=True)
        if legend:
            axes.legend(loc="upper right")
    else:
        axes.set(xticks=[], yticks=[])
        _write(axes, "nothing logged")


def _write(axes: "Axes", text: str) -> None:
    axes.text(0.5, 0.5, text, color=GREY, ha="center", va="center", transform=axes.transAxes)


def _scale(curves: Iterable[tuple[Array, Array]]) -> str:
    """Choose a logarithmic axis for positive values of more than one order of magnitude."""
    values = np.concatenate([values[np.isfinite(values)] for _, values in curves])
    wide = values.size > 0 and 0.0 < values.min() < values.max() / _LOG_FROM_RATIO
    return "log" if wide else "linear"


def _fit_percent(axes: "Axes", curves: dict[str, tuple[Array, Array]]) -> None:
    """Show where most of the curve is: the first steps' accuracy would flatten the rest."""
    values = np.concatenate([values for _, values in curves.values()])
    values = values[np.isfinite(values)]
    if values.size:
        low = 5.0 * np.floor(np.quantile(values, 0.05) / 5.0)
        axes.set_ylim(min(low, 95.0), 100.0 + 0.02 * (100.0 - min(low, 95.0)))


def _difference(axes: "Axes", a: tuple[Array, Array], b: tuple[Array, Array]) -> None:
    steps, at_a, at_b = np.intersect1d(a[0], b[0], return_indices=True)
    values_a, values_b = a[1][at_a], b[1][at_b]
    with np.errstate(invalid="ignore"):  # infinity minus infinity
        apart = np.abs(values_a - values_b)
    zero = (values_a == values_b) | (np.isnan(values_a) & np.isnan(values_b))
    seen = ~zero & np.isfinite(apart)
    if not len(steps):
        axes.set_yticks([])
        _write(axes, "no training loss that both logged")
        return
    low, high = _decades(apart[seen])
    axes.set(yscale="log", ylim=(10.0 ** (low - 1.5), 10.0 ** (high + 0.2)))
    # Below the dotted line the axis is no longer logarithmic: it is exactly zero there.
    axes.axhline(10.0 ** (low - 0.5), color=GREY, linewidth=0.8, linestyle="--")
    axes.plot(steps[seen], apart[seen], ".", color=BLUE, markersize=4)
    axes.plot(steps[zero], np.full(zero.sum(), 10.0 ** (low - 1)), ".", color=GREEN, markersize=4)
    shown = range(low, high + 1, max(1, (high - low) // 4)) if seen.any() else []
    axes.set_yticks([10.0 ** (low - 1), *(10.0**power for power in shown)])
    axes.set_yticklabels(["exactly 0", *(f"$10^{{{power}}}$" for power in shown)])
    axes.minorticks_off()


def _decades(values: Array) -> tuple[int, int]:
    """Return the powers of ten below and above positive values; (-9, 0) without any."""
    if not values.size:
        return -9, 0
    return int(np.floor(np.log10(values.min()))), int(np.ceil(np.log10(values.max())))
