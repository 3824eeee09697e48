"""Plots, drawn without pyplot: no window, no global state, the same on every
machine."""

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import printable
from seedbed.names import flatten
from seedbed.record import Row, read_metrics, read_summary, write_atomically
from seedbed.record.untrusted import read_dict

# Okabe & Ito (2008): distinguishable for color-blind readers, too.
BLUE = "#0072B2"
ORANGE = "#D55E00"
GREY = "#777777"
_STYLE: dict[str, Any] = {
    "font.size": 9,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "agg.path.chunksize": 10_000,  # draw curves of a million steps in chunks
}
# Training values are of single batches, hence the faint line.
_LOOKS: dict[str, dict[str, Any]] = {
    "train": {"alpha": 0.6, "lw": 0.8},
    "validation": {"marker": "o", "markersize": 4},
    "test": {"marker": "D", "markersize": 7, "mfc": "none", "ls": ""},
}


def loss_curve(folder: Path) -> Path | None:
    """Draw a run's loss and metric to `loss_curve.png`; delete it if neither was
    logged."""
    summary = read_summary(folder)
    config = flatten(read_dict(folder))
    rows = read_metrics(folder)
    path = folder / "loss_curve.png"
    names = dict.fromkeys(("loss", str(summary.get("metric_name", "loss"))))
    shown = [name for name in names if any(row.get(name) for row in rows)]
    if all(row.get("loss") == row.get(shown[-1]) for row in rows if shown):
        shown = shown[:1]  # the metric is the loss, as in a regression
    if not shown:
        path.unlink(missing_ok=True)
        return None
    trained = filter(None, (config.get("model.name"), config.get("data.name")))
    title = " on ".join(map(str, trained)) or folder.resolve().name
    return draw(path, {"": rows}, shown, f"{title}, seed {config.get('seed')}")


def draw(
    path: Path,
    runs: Mapping[str, Sequence[Row]],
    names: Sequence[str],
    title: str,
    marked_step: int | None = None,
) -> Path:
    """Draw columns of one or two metrics.csv, by name in the legend, to a PNG, one
    panel each."""
    from matplotlib.figure import Figure  # importing it takes half a second

    with style():
        figure = Figure(figsize=(3.6 * len(names) + 0.4, 2.9), layout="constrained")
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for axes, name in zip(panels, names, strict=True):
            # The second run is dashed, so that the first stays visible where they
            # coincide.
            looks = ((BLUE, "-"), (ORANGE, "--"))
            for (run, rows), (color, line) in zip(runs.items(), looks, strict=False):
                for phase, look in _LOOKS.items():
                    steps, values = points(rows, phase, name)
                    if len(steps):
                        label = f"{run} {phase}".strip()
                        axes.plot(
                            steps,
                            values,
                            **{"c": color, "ls": line, "label": label, **look},
                        )
            if marked_step is not None:
                axes.axvline(marked_step, color=GREY, ls=":", label="first difference")
            low, high = axes.dataLim.intervaly
            if name == "loss" and 0.0 < low < high / 20:
                axes.set_yscale("log")
            axes.set(xlabel="step", ylabel=literal(name))
            axes.locator_params(axis="x", nbins=7, integer=True)
        panels[0].set_title(literal(title))
        lines = {str(line.get_label()): line for axes in panels for line in axes.lines}
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=4)
        return save(figure, path)


def points(rows: Iterable[Row], phase: str, name: str) -> NDArray[np.float64]:
    """Return the steps and values of one phase in metrics.csv, as an array (2, n)."""
    cells = [
        (row["step"], row[name])
        for row in rows
        if row["phase"] == phase and row.get(name)
    ]
    return np.array(cells, dtype=np.float64).reshape(-1, 2).T


def literal(text: str) -> str:
    """Escape a name from a record for matplotlib: no math text, no line breaks."""
    return printable(text).replace("\n", " ").replace("$", r"\$")


def style() -> Any:
    """Return a context with Seedbed's figure style, independent of the user's
    matplotlibrc."""
    from matplotlib.style import context

    return context(["default", _STYLE])


def save(figure: Any, path: Path) -> Path:
    """Write a matplotlib figure to a PNG file, atomically; return its path."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png", dpi=200, metadata={"Software": None})
    write_atomically(path, picture.getvalue())
    return path
