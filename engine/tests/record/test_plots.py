"""plots: pictures that show what the record says, and nothing of the machine they are drawn on."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import plots
from tests import pictures
from tests.made_up_runs import metrics, write_csv, write_run


@pytest.fixture(autouse=True)
def well_drawn() -> Iterator[None]:
    with pictures.checked():
        yield


def curves(axes: Any) -> dict[str, tuple[list[float], list[float]]]:
    """Return what is drawn, by its label in the legend."""
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for line in axes.lines
    }


def column(rows: list[dict[str, str]], phase: str, name: str) -> list[float]:
    return [float(row[name]) for row in rows if row["phase"] == phase]


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
        (
            [row | {"metric": ""} if row["phase"] == "train" else row for row in metrics(40)],
            REGRESSION,
        ),
        (metrics(1)[:1], FAILED),
        ([{**row, "loss": "nan", "metric": "inf"} for row in metrics(40)], FAILED),
        ([row for row in metrics(40) if row["phase"] == "validation"], {}),
    ],
    ids=[
        "usual",
        "short",
        "regression",
        "mse",
        "mse of evaluations",
        "one row",
        "nan",
        "validation only",
    ],
)
def test_every_run_gets_a_loss_curve(
    tmp_path: Path, rows: list[dict[str, str]], summary: dict[str, Any]
) -> None:
    """Also a run that failed at once: a picture wide enough for a column, without a warning."""
    folder = write_run(tmp_path / "run", rows=rows, summary=summary)
    path = plots.loss_curve(folder)

    assert path == folder / "loss_curve.png"
    width, height = size((folder / "loss_curve.png").read_bytes())
    assert width > height > 400


def test_a_run_without_a_logged_row_has_no_picture(tmp_path: Path) -> None:
    """Nor that of an earlier attempt, whose rows are gone; control: one row."""
    folder = write_run(tmp_path / "run", rows=metrics(1)[:1], summary=FAILED)
    assert plots.loss_curve(folder) == folder / "loss_curve.png"
    write_csv(folder / "metrics.csv", record.METRIC_FIELDS, [])
    assert plots.loss_curve(folder) is None
    assert not (folder / "loss_curve.png").exists()


def test_the_loss_curve_shows_the_record() -> None:
    """Each logged loss is a point of the curve; accuracy is in percent."""
    rows = metrics(40)
    figure = plots.loss_figure(rows, "accuracy", "title")
    loss, accuracy = (curves(axes) for axes in figure.axes)

    assert column(rows, "train", "loss") in [values for _, values in loss.values()]
    assert loss["validation"][1] == column(rows, "validation", "loss")
    assert loss["validation"][0] == [20.0, 40.0]
    shown = accuracy["validation"][1]
    np.testing.assert_array_equal(shown, [100 * x for x in column(rows, "validation", "metric")])
    assert figure.axes[1].get_ylabel() == "accuracy (%)"


def test_an_accuracy_is_in_percent_whichever_metric_is_followed() -> None:
    """As its label says, also where the method logs it so; control: another metric is as it is."""
    shares = metrics(40)
    rows = [row | {"accuracy": row["metric"], "metric": "0.5"} for row in shares]
    percent = [row | {"accuracy": repr(100 * float(row["accuracy"]))} for row in rows]
    expected = [100 * x for x in column(shares, "validation", "metric")]
    for each in (rows, percent):
        _, followed, accuracy = plots.loss_figure(each, "macro_f1", "").axes
        assert accuracy.get_ylabel() == "accuracy (%)"
        assert curves(accuracy)["validation"][1] == expected
        assert (followed.get_ylabel(), set(curves(followed)["validation"][1])) == (
            "macro_f1",
            {0.5},
        )


def test_a_long_curve_is_drawn_with_its_running_mean() -> None:
    """Each mean is of 10 rows, never of fewer, at their middle; all rows stay below it."""
    rows = metrics(300)
    lines = curves(plots.loss_figure(rows, "accuracy", "").axes[0])
    raw = column(rows, "train", "loss")
    steps, means = lines["mean of 10 batches"]

    assert raw in [values for _, values in lines.values()]
    assert steps == pytest.approx([i + 5.5 for i in range(291)])
    assert means == pytest.approx([np.mean(raw[i : i + 10]) for i in range(291)])


def marks(axes: Any) -> dict[str, str]:
    return {str(line.get_label()): line.get_marker() for line in axes.lines}


def test_each_logged_step_of_a_short_run_has_a_mark() -> None:
    """And the test's leaves the validation of the same step visible; control: a long run."""
    rows = [*metrics(20), {**metrics(20)[-1], "phase": "test"}]
    axes = plots.loss_figure(rows, "accuracy", "").axes[0]
    assert curves(axes)["training (each batch)"][0] == [*range(1, 21)]
    assert marks(axes) == {"training (each batch)": "o", "validation": "o", "test": "D"}
    assert axes.lines[-1].get_markerfacecolor() == "none"
    assert set(marks(plots.loss_figure(metrics(24), "accuracy", "").axes[0]).values()) == {
        "None",
        "",
        "o",
    }


@pytest.mark.parametrize(
    ("steps", "label"),
    [
        ([20, 40, 60, 62], "training (1 in 20 batches)"),
        ([1, 2, 3], "training (each batch)"),
        ([1, 2, 5, 6], "training (single batches)"),
        ([20, 24], "training (single batches)"),
    ],
)
def test_the_legend_says_that_training_losses_are_of_single_batches(
    steps: list[int], label: str
) -> None:
    """And how many there are; the last step is always logged."""
    rows = [row | {"step": str(n)} for row, n in zip(metrics(9), steps, strict=False)]
    assert label in curves(plots.loss_figure(rows, "accuracy", "").axes[0])


def test_the_legend_of_one_panel_lies_in_the_picture() -> None:
    """However many lines it takes; negative control: in one line it does not."""
    rows = [row | {"step": str(20 * int(row["step"])), "metric": ""} for row in metrics(40)]
    rows.append({**rows[-1], "phase": "test"})

    def is_inside(figure: Any) -> bool:
        figure.draw_without_rendering()
        box = figure.legends[-1].get_window_extent()
        return bool(box.x0 >= 0 and box.x1 <= figure.bbox.width)

    with plots.style():
        figure = plots.loss_figure(rows, "loss", "")
        assert is_inside(figure)
        plots.legend(figure)
        assert not is_inside(figure)


def test_a_run_of_one_step_is_named_by_its_folder_and_its_mark(tmp_path: Path) -> None:
    """Settings of a loop of one's own name no model; a folder's name is no formula."""
    title = plots._title(OmegaConf.create({"seed": 3, "lr": 0.1}), tmp_path / "my$run$")
    assert title == r"my\$run\$, seed 3"
    figure = plots.loss_figure(metrics(1)[:1], "loss", title)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["training (one batch)"]
    assert marks(figure.axes[0]) == {"training (one batch)": "o"}
    assert figure.axes[0].lines[0].get_linestyle() == "None"


def test_no_legend_lies_over_a_curve() -> None:
    """One legend names what all panels show, outside of them."""
    figure = plots.loss_figure(metrics(300), "accuracy", "")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["training (each batch)", "mean of 10 batches", "validation"]
    for axes in figure.axes:
        assert axes.get_legend() is None
        assert not axes.get_window_extent().overlaps(legend.get_window_extent())


def test_panels_have_the_same_steps() -> None:
    """Also one with fewer points; a run of one step has one tick."""
    rows = [row if row["phase"] == "train" or row["step"] == "40" else row | {"metric": ""}
            for row in metrics(40)]  # fmt: skip
    rows = [row | {"metric": ""} if row["phase"] == "train" else row for row in rows]
    loss, accuracy = plots.loss_figure(rows, "accuracy", "").axes
    assert loss.get_xlim() == accuracy.get_xlim()
    assert plots.loss_figure(metrics(1)[:1], "accuracy", "").axes[0].get_xticks().tolist() == [1.0]


def test_a_training_loss_with_a_name_of_its_own_is_drawn_once() -> None:
    """As of the last of several optimizers; control: another value is another curve."""
    rows = [row | {"g_loss": row["loss"] if row["phase"] == "train" else ""}
            for row in metrics(40)]  # fmt: skip
    loss, own = (curves(axes) for axes in plots.loss_figure(rows, "loss", "").axes)
    assert column(rows, "train", "loss") in [values for _, values in own.values()]
    assert column(rows, "train", "loss") not in [values for _, values in loss.values()]
    assert loss["validation"][1] == column(rows, "validation", "loss")
    rows[0]["g_loss"] = "9.0"
    loss = curves(plots.loss_figure(rows, "loss", "").axes[0])
    assert column(rows, "train", "loss") in [values for _, values in loss.values()]


def test_no_value_of_a_curve_is_cut_off() -> None:
    """Also the accuracy of the first steps; negative control: an axis that begins at 80 %."""
    figure = plots.loss_figure(metrics(300), "accuracy", "")
    for axes in figure.axes:
        values = [value for line in axes.lines for value in line.get_ydata()]
        low, high = axes.get_ylim()
        assert low <= min(values) <= max(values) <= high
    assert min(values) < 80.0


def test_a_loss_that_falls_by_orders_of_magnitude_gets_a_logarithmic_axis() -> None:
    """A mean squared error from 1 to 0.001 does; a loss from 2.3 to 0.5 does not."""
    falling = [
        {**row, "loss": repr(value), "metric": repr(value)}
        for row in metrics(40)
        for value in [10 ** (-3 * int(row["step"]) / 40)]
    ]

    axes = plots.loss_figure(falling, "mse", "").axes[0]
    axes.figure.draw_without_rendering()
    assert axes.get_yscale() == "log"
    assert "0.01" in [text.get_text() for text in axes.get_yticklabels()]
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
        "import sys; from pathlib import Path; from seedbed.record import plots\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plots.loss_curve(Path('run'))\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    source = str(Path(__file__).resolve().parents[3] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=environment)


@pytest.mark.parametrize("metric_name", ["accuracy", "mse"])
def test_a_cell_that_is_no_number_is_an_input_error(tmp_path: Path, metric_name: str) -> None:
    """A damaged record gets a line that says so, and no picture."""
    rows = [{**metrics(1)[0], "loss": "much"}]
    folder = write_run(tmp_path / "run", rows=rows, summary={"metric_name": metric_name})

    with pytest.raises(InputError, match=r"metrics.csv: expected numbers, got .*'much'"):
        plots.loss_curve(folder)
    assert not (folder / "loss_curve.png").exists()


def test_each_column_of_a_method_has_a_panel() -> None:
    """Learning rates of groups have none, and empty cells no point."""
    rows = [{**row, "kl": "" if number % 2 else "0.5", "learning_rate_head": "0.1"}
            for number, row in enumerate(metrics(40))]  # fmt: skip
    with plots.style():
        figure = plots.loss_figure(rows, "loss", "title")
    shown = [axes for axes in figure.axes if axes.lines]
    assert [axes.get_ylabel() for axes in shown] == ["loss", "kl"]
    assert plots.points(rows, "train", "kl")[1].tolist().count(0.5) > 0
    with plots.style():
        many = [{**row, **{f"part_{n}": "1" for n in range(30)}} for row in rows]
        assert len([a for a in plots.loss_figure(many, "accuracy", "").axes if a.lines]) == 12
