"""plots: pictures that show what the record says, and nothing of the machine they are drawn on."""

import os
import struct
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from seedbed import compare, record
from seedbed.errors import InputError
from seedbed.record import plots
from tests.made_up_runs import fingerprint_rows, metrics, write_csv, write_run


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def curves(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Return what is drawn, by its label in the legend."""
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
    }


def column(rows: list[dict[str, str]], phase: str, name: str) -> list[float]:
    return [float(row[name]) for row in rows if row["phase"] == phase]


def comparison_figure(a: Path, b: Path) -> Figure:
    record_a, record_b = compare.read(a), compare.read(b)
    return plots.comparison_figure(record_a, record_b, compare.compare(record_a, record_b))


def size(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", picture[16:24])


REGRESSION: dict[str, Any] = {"metric_name": "mse"}
FAILED: dict[str, Any] = {"status": "failed", "steps": 0}


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        (metrics(40), {}),
        (metrics(3), {}),
        (metrics(40), REGRESSION),
        ([{**row, "metric": row["loss"]} for row in metrics(40)], REGRESSION),
        (metrics(1)[:1], FAILED),
        ([], FAILED),
        ([{**row, "loss": "nan", "metric": "inf"} for row in metrics(40)], FAILED),
        ([row for row in metrics(40) if row["phase"] == "validation"], {}),
    ],
    ids=["usual", "short", "regression", "mse", "one row", "empty", "nan", "validation only"],
)
def test_every_run_gets_a_loss_curve(
    tmp_path: Path, rows: list[dict[str, str]], summary: dict[str, Any]
) -> None:
    """Also a run that failed at once: a picture wide enough for a column, without a warning."""
    folder = write_run(tmp_path / "run", rows=rows, summary=summary)
    path = plots.loss_curve(folder)

    assert path == folder / "loss_curve.png"
    width, height = size(path.read_bytes())
    assert width > height > 400


def test_the_loss_curve_shows_the_record() -> None:
    """Each logged loss is a point of the curve; accuracy is in percent."""
    rows = metrics(40)
    figure = plots.loss_figure(rows, "accuracy", "title")
    loss, accuracy = (curves(axes) for axes in figure.axes)

    assert loss["training"][1] == column(rows, "train", "loss")
    assert loss["validation"][1] == column(rows, "validation", "loss")
    assert loss["validation"][0] == [20.0, 40.0]
    shown = accuracy["validation"][1]
    np.testing.assert_array_equal(shown, [100 * x for x in column(rows, "validation", "metric")])
    assert figure.axes[1].get_ylabel() == "accuracy (%)"


def test_a_long_curve_is_drawn_with_its_running_mean() -> None:
    """The mean of every window of rows, at the step in its middle; the raw curve stays below."""
    rows = metrics(300)
    lines = curves(plots.loss_figure(rows, "accuracy", "").axes[0])
    raw = column(rows, "train", "loss")
    steps, means = lines["training (mean of 10)"]

    assert raw in [values for _, values in lines.values()]
    assert (steps[0], steps[-1]) == (5.0, 295.0)
    assert means == pytest.approx([np.mean(raw[i : i + 10]) for i in range(291)])


def test_a_loss_that_falls_by_orders_of_magnitude_gets_a_logarithmic_axis() -> None:
    """A mean squared error from 1 to 0.001 does; a loss from 2.3 to 0.5 does not."""
    falling = [
        {**row, "loss": repr(value), "metric": repr(value)}
        for row in metrics(40)
        for value in [10 ** (-3 * int(row["step"]) / 40)]
    ]

    assert plots.loss_figure(falling, "mse", "").axes[0].get_yscale() == "log"
    assert plots.loss_figure(metrics(40), "accuracy", "").axes[0].get_yscale() == "linear"


def test_a_metric_that_is_the_loss_is_drawn_once() -> None:
    """Regression quotes its loss; another metric gets a panel of its own."""
    rows = [{**row, "metric": row["loss"]} for row in metrics(40)]

    assert len(plots.loss_figure(rows, "mse", "").axes) == 1
    assert len(plots.loss_figure(metrics(40), "mse", "").axes) == 2


def test_a_loss_that_is_not_finite_is_marked() -> None:
    """A curve that just ends could be a run that was stopped."""
    rows = metrics(40)
    rows[30]["loss"] = "nan"

    assert curves(plots.loss_figure(rows, "accuracy", "").axes[0])["not finite"][0][0] == 30.0
    assert "not finite" not in curves(plots.loss_figure(metrics(40), "accuracy", "").axes[0])


def test_the_same_record_gives_the_same_picture_whatever_the_users_style(tmp_path: Path) -> None:
    """Byte for byte, under another matplotlibrc too; another loss gives another picture."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    first = plots.loss_curve(a).read_bytes()
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 5, "text.usetex": True}):
        assert first == plots.loss_curve(b).read_bytes()
        assert matplotlib.rcParams["font.size"] == 20  # and the user's style is left alone

    rows = metrics(40)
    rows[10]["loss"] = "9.0"
    write_csv(b / "metrics.csv", record.METRIC_FIELDS, rows)
    assert first != plots.loss_curve(b).read_bytes()


def test_pictures_need_no_pyplot(tmp_path: Path) -> None:
    """No window, no global figures: pyplot is never imported, and matplotlib only to draw."""
    write_run(tmp_path / "run")
    code = (
        "import sys; from pathlib import Path; from seedbed import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.loss_curve(Path('run'))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    source = str(Path(__file__).resolve().parents[3] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)


def test_a_difference_of_zero_is_drawn_apart_from_the_smallest_one(tmp_path: Path) -> None:
    """Steps with equal bits lie on a line of their own, others at their height on the log axis."""
    rows = metrics(40)
    for row in rows:
        if row["phase"] == "train" and int(row["step"]) > 25:
            row["loss"] = repr(float(row["loss"]) + 2.0**-20)
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", rows=rows)
    figure = comparison_figure(a, b)
    axes = figure.axes[1]
    apart, zero = [
        (list(line.get_xdata()), set(line.get_ydata()))
        for line in axes.lines
        if line.get_marker() == "."
    ]

    assert axes.get_yscale() == "log"
    assert (apart[0], zero[0]) == (list(range(26, 41)), list(range(1, 26)))
    assert max(zero[1]) < min(apart[1])
    assert min(apart[1]) == pytest.approx(2.0**-20)
    labels = dict(
        zip(axes.get_yticks(), (t.get_text() for t in axes.get_yticklabels()), strict=True)
    )
    assert [labels[height] for height in zero[1]] == ["exactly 0"]
    assert figure.axes[0].get_title() == ("first difference: step 26, training loss (forward pass)")


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"steps": 7},
        {"rows": []},
        {"rows": metrics(40, every=7)},
        {"rows": [{**row, "loss": "nan"} for row in metrics(40)]},
        {"rows": [{**row, "loss": "inf"} for row in metrics(40)]},
        {"rows": metrics(1)[:1]},
        {"fingerprints": [{**row, "batch": "0" * 16} for row in fingerprint_rows(40)]},
    ],
    ids=["same", "shorter", "no losses", "sparse", "nan", "inf", "one row", "all_steps"],
)
def test_every_pair_of_runs_gets_a_comparison(tmp_path: Path, other: dict[str, Any]) -> None:
    """Whatever the two records lack, there is a picture, without a warning."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", **other)
    figure = comparison_figure(a, b)
    plots.save(figure, tmp_path / "comparison.png")

    assert len(figure.axes) == 2
    size((tmp_path / "comparison.png").read_bytes())


@pytest.mark.parametrize("metric_name", ["accuracy", "mse"])
def test_a_cell_that_is_no_number_is_an_input_error(tmp_path: Path, metric_name: str) -> None:
    """A damaged record gets a line that says so, and no picture."""
    rows = [{**metrics(1)[0], "loss": "much"}]
    folder = write_run(tmp_path / "run", rows=rows, summary={"metric_name": metric_name})

    with pytest.raises(InputError, match=r"metrics.csv: expected numbers, got .*'much'"):
        plots.loss_curve(folder)
    assert not (folder / "loss_curve.png").exists()


def test_a_comparison_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    """A folder that is not there: one line with the name and the system's reason."""
    run = compare.read(write_run(tmp_path / "run"))
    out = tmp_path / "nowhere" / "comparison.png"

    with pytest.raises(InputError, match=r"nowhere/comparison.png: .* got No such file"):
        plots.comparison(run, run, compare.compare(run, run), out)
