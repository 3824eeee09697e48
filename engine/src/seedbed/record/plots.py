"""Pictures, drawn without pyplot: no window, no global state, the same on every machine."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from omegaconf import OmegaConf

from seedbed.errors import printable
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
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.fontsize": 8,
    "lines.linewidth": 1.3,
    "agg.path.chunksize": 10_000,  # a curve of a million steps is drawn in pieces
}


def loss_curve(folder: Path) -> Path | None:
    """Draw a run's loss and metric into `loss_curve.png`; of what was not logged, no picture."""
    summary, config = read_summary(folder), read_config(folder)
    rows, path = read_metrics(folder), folder / "loss_curve.png"
    names = dict.fromkeys(("loss", str(summary.get("metric_name", "loss"))))
    shown = [name for name in names if any(row.get(name) for row in rows)]
    if not shown:
        path.unlink(missing_ok=True)
        return None
    names_of = [OmegaConf.select(config, f"{section}.name") for section in ("model", "data")]
    title = " on ".join(str(name) for name in names_of if name) or folder.resolve().name
    with style():
        figure = panels(len(shown))
        for axes, name in zip(figure.axes, shown, strict=True):
            draw(axes, rows, name)
        figure.axes[0].set_title(literal(f"{title}, seed {config.get('seed')}"))
        legend(figure, columns=1 + len(shown))
        return save(figure, path)


def panels(count: int) -> "Figure":
    """Return a figure of panels side by side, with steps below each."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * count + 0.4, 2.9), layout="constrained")
    for axes in figure.subplots(1, count, sharex=True, squeeze=False)[0]:
        axes.set(xlabel="step")
        axes.locator_params(axis="x", nbins=7, integer=True)
    return figure


def draw(
    axes: "Axes", rows: Iterable[Row], name: str, run: str = "", color: str = "", ls: str = "-"
) -> None:
    """Draw a column of metrics.csv: training, which is of single batches, validation and test.

    Args:
        run, color, ls: where there are several runs, how the legend calls this one, and its lines.
    """
    curves = {phase: points(rows, phase, name) for phase in ("train", "validation", "test")}
    steps, values = curves["train"]
    look: dict[str, Any] = {"color": color or BLUE, "ls": ls, "label": f"{run}training"}
    if len(steps) > 20:  # of many batches, the running mean above them
        window = max(5, len(steps) // 30)
        axes.plot(steps, values, color=color or BLUE, alpha=0.3, linewidth=0.7)
        look["label"] += f" (mean of {window} batches)"
        axes.plot(*running_mean(steps, values, window), **look)
    elif len(steps):
        axes.plot(steps, values, marker="o", markersize=3, **look)
    for phase, own, more in (
        ("validation", ORANGE, {"marker": "o"}),
        # Around the validation of the same step.
        ("test", GREEN, {"marker": "D", "mfc": "none", "markersize": 7, "ls": ""}),
    ):
        if len(curves[phase][0]):
            look |= {"color": color or own, "label": f"{run}{phase}", **more}
            axes.plot(*curves[phase], **look)
    finite = np.concatenate([each[np.isfinite(each)] for _, each in curves.values()])
    if name == "loss" and finite.size and 0.0 < finite.min() < finite.max() / 20:
        axes.set_yscale("log")
    axes.set_ylabel(literal(name))


def points(rows: Iterable[Row], phase: str, name: str) -> Curve:
    """Return the steps and values of one phase in metrics.csv."""
    own = [row for row in rows if row["phase"] == phase and row.get(name)]
    cells = [(row["step"], row[name]) for row in own]
    table = np.array(cells, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def running_mean(steps: NDArray[np.float64], values: NDArray[np.float64], rows: int) -> Curve:
    """Return the means of `rows` neighbours, never of fewer, at the middle of their steps."""
    window = np.full(rows, 1.0 / rows)
    return np.convolve(steps, window, mode="valid"), np.convolve(values, window, mode="valid")


def literal(text: str) -> str:
    """Return a name of a record as matplotlib draws it: neither as a formula nor over lines."""
    return printable(text).replace("\n", " ").replace("$", r"\$")


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
