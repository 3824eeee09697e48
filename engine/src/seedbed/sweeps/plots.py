"""The picture of a sweep: curves with their bands, and where each run ended."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seedbed import record, rng
from seedbed.errors import InputError, printable
from seedbed.record import plots
from seedbed.sweeps.groups import Group, Run, Sweep
from seedbed.sweeps.summary import Scale, Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats = NDArray[np.float64]

# Okabe & Ito (2008), in an order that keeps neighbours apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#777777")
_JITTER_KEY = 0
_ERROR_NAMES = {"accuracy": "error (%)", "mse": "mean squared error"}
_LOG_FROM_RATIO = 5.0
_FEW = 5  # curves can be told apart
_MANY = 50  # points lie on each other
_MOST_GROUPS_NAMED = 8
_MOST_METRICS = 20
_MOST_LETTERS = 60  # of a name
_MOST_LETTERS_IN_A_ROW = 28


def draw(sweep: Sweep, summaries: Sequence[Summary], path: Path) -> None:
    """Draw `sweep.png`: a row for each metric, validation on the left, final values on the right.

    Both panels have one axis: the error, for accuracies. Without two validations to draw a curve
    through, there is no left panel.
    """
    from matplotlib.figure import Figure

    metrics = list(dict.fromkeys(group.metric for group in sweep.groups))[:_MOST_METRICS]
    drawn = {id(group): curves(group) for group in sweep.groups}
    colors = {id(group): COLORS[n % len(COLORS)] for n, group in enumerate(sweep.groups)}
    columns = 2 if any(len(steps) > 1 for steps, _ in drawn.values()) else 1
    with plots.style():
        size = (3.6 + 3.6 * (columns - 1), 0.6 + 2.7 * len(metrics))
        figure = Figure(figsize=size, layout="constrained")
        ratios = (3, 2)[-columns:]
        rows = figure.subplots(len(metrics), columns, squeeze=False, width_ratios=ratios)
        for panels, metric in zip(rows, metrics, strict=True):
            chosen = [
                (group, summary, colors[id(group)])
                for group, summary in zip(sweep.groups, summaries, strict=True)
                if group.metric == metric
            ]
            if columns == 2:
                shown = [_draw_curves(panels[0], g, drawn[id(g)], color) for g, _, color in chosen]
                _finish_curves(panels[0], metric, np.concatenate(shown))
            for position, (group, summary, color) in enumerate(chosen):
                _draw_values(panels[-1], position, group, summary, color)
            _finish_values(panels[-1], metric, [group for group, _, _ in chosen])
        figure.suptitle(_title(sweep.groups), fontsize=10)
        if 1 < len(sweep.groups) <= _MOST_GROUPS_NAMED:
            plots.legend(figure, columns=2)
        plots.save(figure, path)


def curves(group: Group) -> tuple[Floats, Floats]:
    """Return the validation curves of a group, one run for each seed.

    Returns:
        Steps (n,) that every run reached, and the metric, (runs, n).
    """
    runs = [runs[0] for runs in group.replicates.values()]
    tables = [_validation_curve(run, column_of(group)) for run in runs]
    steps = sorted(set.intersection(*(set(table) for table in tables)))
    values = [[table[step] for step in steps] for table in tables]
    return np.array(steps), np.array(values).reshape(len(runs), len(steps))


def column_of(group: Group) -> str:
    """Return the column of metrics.csv that has the metric of a group."""
    name = group.metric.partition("_")[2]
    return "metric" if name == group.runs[0].summary.get("metric_name") else name


def _validation_curve(run: Run, column: str) -> dict[float, float]:
    """Return a value of validations by step; empty where the table cannot be read."""
    try:
        rows = record.read_metrics(run.folder)
        return {
            float(row["step"]): float(row[column])
            for row in rows
            if row["phase"] == "validation" and row.get(column)
        }
    except (InputError, ValueError):
        return {}


def _draw_curves(axes: "Axes", group: Group, curve: tuple[Floats, Floats], color: str) -> Floats:
    """Draw the median, and each run; of many runs, the middle half (dark) and all of them (light).

    Returns:
        What was drawn, float64 (values,): nothing if there are fewer than two validations.
    """
    steps, shown = curve[0], _errors(group.metric, curve[1])
    if len(steps) < 2:
        return np.empty(0)
    low, first, median, third, high = np.quantile(shown, [0, 0.25, 0.5, 0.75, 1], axis=0)
    if len(shown) <= _FEW:
        axes.plot(steps, shown.T, color=color, alpha=0.45, linewidth=0.7)
    else:
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        axes.fill_between(steps, first, third, color=color, alpha=0.3, linewidth=0)
    axes.plot(steps, median, color=color, label=_name(group), marker="o", markersize=2.5)
    return shown.ravel()


def _draw_values(axes: "Axes", position: int, group: Group, summary: Summary, color: str) -> None:
    """Draw each run's final value and, of several, the mean with its interval."""
    values = _errors(group.metric, np.array(list(group.values.values())))
    jitter = rng.uniform(_JITTER_KEY, np.arange(len(values)), 1)[:, 0] - 0.5
    axes.plot(
        position - 0.1 + 0.2 * jitter, values, "o", color=color,
        alpha=0.6 if len(values) <= _MANY else 0.2,
        markersize=4, markeredgewidth=0,
    )  # fmt: skip
    if summary.interval is not None:
        mean = _errors(group.metric, np.array(summary.mean))
        bars = np.abs(_errors(group.metric, np.array(summary.interval)) - mean)
        ends = bars[::-1][:, None] if Scale(group.metric).percent else bars[:, None]
        axes.errorbar(position + 0.1, mean, ends, fmt="D", color=color, capsize=3, markersize=3.5)


def _finish_curves(axes: "Axes", metric: str, shown: Floats) -> None:
    axes.set(xlabel="step", ylabel=f"validation {_error_name(metric)}")
    spread = "middle half and range" if axes.collections else "each run"
    axes.set_title(f"during training: median, {spread}")
    axes.locator_params(axis="x", integer=True, nbins=6)
    if 0 < shown.min() < shown.max() / _LOG_FROM_RATIO:
        plots.plain_log_axis(axes)


def _finish_values(axes: "Axes", metric: str, groups: Sequence[Group]) -> None:
    split = metric.partition("_")[0]
    labels, keys = tick_labels([_text(group.label) or _count(group) for group in groups])
    axes.set(ylabel=f"{split} {_error_name(metric)}", xlim=(-0.6, len(labels) - 0.4), xlabel=keys)
    axes.set_title("at the end: mean, 95 % interval")
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(labels)), labels)
    if sum(max(map(len, label.split("\n"))) for label in labels) > _MOST_LETTERS_IN_A_ROW:
        axes.tick_params(axis="x", labelrotation=30)
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def tick_labels(labels: Sequence[str]) -> tuple[Sequence[str], str]:
    """Return labels of ticks, and one of the axis: the keys, if all labels are values of the same.

    Of `lr=0.1, model=cnn` and `lr=0.2, model=cnn` each value has a line of its own.
    """
    parts = [[part.partition("=") for part in label.split(", ")] for label in labels]
    keys = [[key for key, _, _ in each] for each in parts]
    if keys[1:] != keys[:-1] or not all(sign for each in parts for _, sign, _ in each):
        return labels, ""
    return ["\n".join(value for *_, value in each) for each in parts], ", ".join(keys[0])


def _title(groups: Sequence[Group]) -> str:
    """Name the models and the data sets, as far as the runs name them."""
    found = [
        ", ".join(dict.fromkeys(_text(str(g.settings[key])) for g in groups if key in g.settings))
        for key in ("model.name", "data.name")
    ]
    return " on ".join(filter(None, found))


def _error_name(metric: str) -> str:
    """Return how the axis of a metric is called, without its split."""
    name = metric.partition("_")[2]
    return _ERROR_NAMES.get(name, _text(name))


def _name(group: Group) -> str:
    return f"{_text(group.label)} ({_count(group)})" if group.label else _count(group)


def _count(group: Group) -> str:
    """Return what the points are: `3 seeds`, `5 folds`, or runs where these are combined."""
    number, unit = len(group.values), group.unit
    one_by_one = number > 1 and not all(map(group.in_step, group.values))
    if unit == "seeds" and (group.folds or one_by_one):
        unit = "runs"
    return f"{number} {unit if number > 1 else unit.removesuffix('s')}"


def _text(name: str) -> str:
    """Return a name of a record as the letters it has, not as mathematics."""
    return printable(name[:_MOST_LETTERS]).replace("$", r"\$")


def _errors(metric: str, values: Floats) -> Floats:
    """Return what a logarithmic axis shows best: 100 - accuracy in per cent, or the error."""
    return 100.0 * (1.0 - values) if Scale(metric).percent else values
