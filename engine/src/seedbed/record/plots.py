"""The picture of a run, and how every picture of Seedbed looks.

Figures are drawn without pyplot: no global state, no window, the same picture on every machine.
"""

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import DictConfig

from seedbed.errors import InputError, printable
from seedbed.record.files import write_atomically
from seedbed.record.folder import read_config
from seedbed.record.summary import read_summary
from seedbed.record.tables import METRIC_FIELDS, Row, read_metrics, values_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
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
_MOST_LETTERS = 60  # of a folder's name
_MOST_ROWS_DRAWN_ALONE = 20
_PANELS_IN_LINE, _MOST_PANELS = 3, 12
_LOG_FROM_RATIO = 20.0


def loss_curve(folder: Path) -> Path | None:
    """Draw a run's losses and metric into `loss_curve.png` in its folder; return its path.

    Where nothing was logged, there is no picture, also none of an earlier attempt.

    Raises:
        InputError: the folder is no run, or its metrics are damaged.
        OSError: the file cannot be written.
    """
    summary, config = read_summary(folder), read_config(folder)
    title = _title(config, folder)
    if summary.get("status") == "failed":
        title += ", failed"
    elif summary.get("status") == "interrupted":
        title += f", interrupted at step {summary.get('steps', 0)}"
    metric_name = str(summary.get("metric_name", "metric"))
    rows, path = read_metrics(folder), folder / "loss_curve.png"
    if not rows:
        path.unlink(missing_ok=True)
        return None
    with style():
        return save(loss_figure(rows, metric_name, title), path)


def _title(config: DictConfig, folder: Path) -> str:
    """Say what was trained: the settings of a loop of one's own may not, then its folder does."""
    sections = [config.get(section) for section in ("model", "data")]
    names = [each.get("name") for each in sections if isinstance(each, DictConfig)]
    seed = config.get("seed")
    what = " on ".join(str(name) for name in names if name is not None)
    what = what or printable(folder.resolve().name)[:_MOST_LETTERS]
    return ", ".join([what, *([] if seed is None else [f"seed {seed}"])]).replace("$", r"\$")


def loss_figure(rows: Sequence[Row], metric_name: str, title: str) -> "Figure":
    """Return a figure of the loss and, where it is not the loss, the metric against the step.

    Args:
        rows: of metrics.csv.
        metric_name: of the metric that is followed. An accuracy, this one or another, is drawn in
            percent.
    """
    from matplotlib.figure import Figure

    loss_is_metric = metric_name == "mse" and all(
        _agree(*(points(rows, phase, name)[1] for name in ("loss", "metric"))) for phase in PHASES
    )
    names = panels(rows, metric_name, loss_is_metric)
    lines, columns = -(-len(names) // _PANELS_IN_LINE), min(len(names), _PANELS_IN_LINE)
    figure = Figure(figsize=(3.4 * columns + 0.4, 2.7 * lines), layout="constrained")
    every = figure.subplots(lines, columns, squeeze=False).ravel()
    for axes in every[len(names) :]:
        axes.set_axis_off()
    for axes, name in zip(every, names, strict=False):
        label = metric_name if loss_is_metric or name == "metric" else name
        curves = {phase: points(rows, phase, name) for phase in PHASES}
        if label == "accuracy":
            curves = _in_percent(curves)
        if name == "loss" and _has_own_name(rows, names):
            curves["train"] = (np.empty(0), np.empty(0))
        _curves(axes, curves)
        axes.set(xlabel="step", ylabel=LABELS.get(label, label))
        if label == "accuracy":
            _fit_percent(axes, curves)
        else:
            fit_scale(axes, curves.values())
    finish(*every[: len(names)])
    figure.axes[0].set_title(title)
    legend(figure, columns=2 if columns == 1 else 5)
    return figure


def _agree(losses: Array, metrics: Array) -> bool:
    """Return whether a metric is the loss under another name."""
    return losses.shape == metrics.shape and np.allclose(losses, metrics, rtol=1e-3)


def _has_own_name(rows: Sequence[Row], names: Sequence[str]) -> bool:
    """Return whether the training loss is a method's own value too, which has another panel.

    So it is where each of several optimizers has a loss: the last one's is also the step's.
    """
    train = [values_of(row) for row in rows if row["phase"] == "train"]
    evaluated = any(row["loss"] for row in rows if row["phase"] != "train")
    own = [name for name in names if name not in METRIC_FIELDS]
    return evaluated and any(
        all(row.get(name) == row.get("loss") for row in train) for name in own if train
    )


def panels(rows: Sequence[Row], metric_name: str, loss_is_metric: bool) -> list[str]:
    """Return the columns of metrics.csv to draw: those of a method's own follow the usual ones."""
    values = dict.fromkeys(name for row in rows for name in values_of(row))
    own = [name for name in values if name not in METRIC_FIELDS and "learning_rate" not in name]
    usual = ["loss"] if loss_is_metric or metric_name == "loss" else ["loss", "metric"]
    if own and "loss" not in values:
        usual.remove("loss")
    return [*usual, *own][:_MOST_PANELS]


def points(rows: Iterable[Row], phase: str, name: str) -> tuple[Array, Array]:
    """Return the steps (n,) and values (n,) of one phase in metrics.csv, as float64.

    Raises:
        InputError: a cell is no number.
    """
    cells = [(row["step"], row[name]) for row in rows if row["phase"] == phase and row[name] != ""]
    try:
        table = np.array(cells, dtype=np.float64).reshape(-1, 2)
    except ValueError as error:
        raise InputError(f"metrics.csv: expected numbers, got {error}; replay the run") from None
    return table[:, 0], table[:, 1]


def running_mean(steps: Array, values: Array, rows: int) -> tuple[Array, Array]:
    """Return the means of `rows` neighbours, at the middle of their steps: (n - rows + 1,) each.

    Never of fewer: the mean of a few values at an end would stand out.
    """
    window = np.full(rows, 1.0 / rows)
    found = [np.convolve(each, window, mode="valid") for each in (steps, values)]
    return found[0], found[1]


def style() -> Any:
    """Return a context in which figures look like Seedbed's."""
    # From matplotlib's own defaults, so that a user's matplotlibrc does not change the pictures.
    from matplotlib.style import context

    return context(["default", _STYLE])


def save(figure: "Figure", path: Path) -> Path:
    """Write a figure as a PNG file, atomically; return its path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=200, metadata={"Software": None})
    write_atomically(path, picture.getvalue())
    return path


def _curves(axes: "Axes", curves: dict[str, tuple[Array, Array]]) -> None:
    (steps, values), look = curves["train"], {"color": BLUE}
    if len(steps) > _MOST_ROWS_DRAWN_ALONE:
        window = max(5, len(steps) // 30)
        line(axes, (steps, values), _batches(steps), alpha=0.4, linewidth=0.7, **look)
        label = f"mean of {window} batches"
        line(axes, running_mean(steps, values, window), label, marker="", **look)
    else:
        line(axes, (steps, values), _batches(steps), **look)
    line(axes, curves["validation"], "validation", color=ORANGE, marker="o", markersize=4)
    # Around the validation of the same step, which it must not cover.
    line(axes, curves["test"], "test", color=GREEN, ls="", marker="D", mfc="none", markersize=7)
    broken = [step for steps, values in curves.values() for step in steps[~np.isfinite(values)]]
    if broken:
        axes.axvline(min(broken), color=GREY, linewidth=0.8, linestyle=":", label="not finite")


def _batches(steps: Array) -> str:
    """Return what the values of training are: no means over an epoch."""
    apart = np.unique(np.diff(steps[:-1]))  # the last step of a run is always logged
    if len(apart) != 1:
        return "training (single batches)" if len(steps) > 1 else "training (one batch)"
    return f"training (1 in {apart[0]:g} batches)" if apart > 1 else "training (each batch)"


def line(axes: "Axes", curve: tuple[Array, Array], label: str, **look: Any) -> None:
    """Draw a curve, each point of a short one as a dot; without points nothing is drawn."""
    if not len(curve[0]):
        return
    if len(curve[0]) <= _MOST_ROWS_DRAWN_ALONE and "marker" not in look:
        look |= {"marker": "o", "markersize": 3}  # a line through one point is invisible
    if len(curve[0]) == 1:
        look["ls"] = ""
    axes.plot(*curve, label=label or "_", **look)


def finish(*panels: "Axes") -> None:
    """Give panels the same range of steps, with ticks at whole ones; say so of empty ones."""
    drawn = [axes for axes in panels if axes.lines]
    for axes in panels:
        if axes not in drawn:
            axes.set(xticks=[], yticks=[])
            write(axes, "nothing logged")
    if not drawn:
        return
    steps = np.unique(np.concatenate([line.get_xdata() for axes in drawn for line in axes.lines]))
    limits = np.array([axes.get_xlim() for axes in drawn])
    for axes in drawn:
        axes.set_xlim(limits[:, 0].min(), limits[:, 1].max())
        if len(steps) == 1:
            axes.set_xticks(steps)
        else:
            axes.locator_params(axis="x", nbins=7, integer=True)


def legend(figure: "Figure", columns: int = 5) -> None:
    """Name what all panels show once, below them and row by row, where it lies over no curve."""
    named: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(str(label), handle)
    if named:
        columns = min(columns, len(named))
        by_column = [label for start in range(columns) for label in list(named)[start::columns]]
        handles = [named[label] for label in by_column]
        figure.legend(handles, by_column, loc="outside lower center", ncols=columns)


def write(axes: "Axes", text: str) -> None:
    """Write a remark into the middle of a panel."""
    axes.text(0.5, 0.5, text, color=GREY, ha="center", va="center", transform=axes.transAxes)


def fit_scale(axes: "Axes", curves: Iterable[tuple[Array, Array]]) -> None:
    """Choose a logarithmic axis for positive values of more than one order of magnitude."""
    values = np.concatenate([values[np.isfinite(values)] for _, values in curves])
    if values.size > 0 and 0.0 < values.min() < values.max() / _LOG_FROM_RATIO:
        plain_log_axis(axes)


def plain_log_axis(axes: "Axes") -> None:
    """Make the y axis logarithmic, with ticks at 1, 2 and 5 as plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _in_percent(curves: dict[str, tuple[Array, Array]]) -> dict[str, tuple[Array, Array]]:
    """Return curves of an accuracy in percent: shares of 1 are, unless one is above 1."""
    if any((values > 1.0).any() for _, values in curves.values()):
        return curves
    return {phase: (steps, 100.0 * values) for phase, (steps, values) in curves.items()}


def _fit_percent(axes: "Axes", curves: dict[str, tuple[Array, Array]]) -> None:
    """Show every value, and 100 % as the most that there can be."""
    values = np.concatenate([values for _, values in curves.values()])
    values = values[np.isfinite(values)]
    if values.size:
        low = min(5.0 * np.floor(values.min() / 5.0), 95.0)
        room = 0.04 * (100.0 - low)
        axes.set_ylim(low - room, 100.0 + room)
