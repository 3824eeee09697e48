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

from seedbed.errors import InputError
from seedbed.record import plots
from tests import pictures
from tests.made_up_runs import FIELDS, metrics, write_csv, write_run

BOTH = ("loss", "accuracy")
FAILED: dict[str, Any] = {"status": "failed", "steps": 0}


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


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        (metrics(40), {}),
        (metrics(300), {}),
        ([row | {"accuracy": ""} for row in metrics(40)], {"metric_name": "loss"}),
        ([row | {"loss": repr(10 ** (-int(row["step"]) / 9))} for row in metrics(40)], {}),
        (metrics(1)[:1], FAILED),
        ([{**row, "loss": "nan", "accuracy": "inf"} for row in metrics(40)], FAILED),
        ([row for row in metrics(40) if row["phase"] == "validation"], {}),
    ],
    ids=["usual", "long", "loss only", "falling", "one row", "nan", "validation only"],
)
def test_every_run_gets_a_loss_curve(
    tmp_path: Path, rows: list[dict[str, str]], summary: dict[str, Any]
) -> None:
    """Also one that failed at once: a whole picture, without a warning."""
    folder = write_run(tmp_path / "my$run$", rows=rows, summary=summary)
    assert plots.loss_curve(folder) == folder / "loss_curve.png"
    picture = (folder / "loss_curve.png").read_bytes()
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    assert width > height > 400


def test_a_run_without_a_logged_row_has_no_picture(tmp_path: Path) -> None:
    """Nor that of an earlier attempt, whose rows are gone; control: one row."""
    folder = write_run(tmp_path / "run", rows=metrics(1)[:1], summary=FAILED)
    assert plots.loss_curve(folder) == folder / "loss_curve.png"
    write_csv(folder / "metrics.csv", FIELDS, [])
    assert plots.loss_curve(folder) is None
    assert not (folder / "loss_curve.png").exists()


def test_the_loss_curve_shows_the_record() -> None:
    """Each logged loss is a point; a mean is of 10 rows, never of fewer, at their middle."""
    rows = metrics(300)
    loss, accuracy = (curves(axes) for axes in plots.loss_figure(rows, BOTH, "title").axes)
    raw = column(rows, "train", "loss")
    assert loss["training batches"][1] == raw
    steps, means = loss["mean of 10 batches"]
    assert steps == pytest.approx([i + 5.5 for i in range(291)])
    assert means == pytest.approx([np.mean(raw[i : i + 10]) for i in range(291)])
    assert accuracy["validation"][1] == column(rows, "validation", "accuracy")
    assert accuracy["validation"][0] == [20.0 * n for n in range(1, 16)]


def test_a_loss_that_is_not_finite_is_marked() -> None:
    """A curve that just ends could be a run that was stopped; control: a finite one."""
    rows = metrics(40)
    rows[30]["loss"] = "nan"
    assert curves(plots.loss_figure(rows, BOTH, "").axes[0])["not finite"][0][0] == 30.0
    assert "not finite" not in curves(plots.loss_figure(metrics(40), BOTH, "").axes[0])


def test_the_same_record_gives_the_same_picture_whatever_the_users_style(tmp_path: Path) -> None:
    """Byte for byte, under another matplotlibrc too; another loss gives another picture."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    first = plots.loss_curve(a).read_bytes()
    with matplotlib.rc_context({"font.size": 20, "lines.linewidth": 5, "text.usetex": True}):
        assert first == plots.loss_curve(b).read_bytes()
        assert matplotlib.rcParams["font.size"] == 20  # and the user's style is left alone

    rows = metrics(40)
    rows[10]["loss"] = "9.0"
    write_csv(b / "metrics.csv", FIELDS, rows)
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


def test_a_cell_that_is_no_number_is_an_input_error(tmp_path: Path) -> None:
    """A damaged record gets a line that says so, and no picture."""
    folder = write_run(tmp_path / "run", rows=[{**metrics(1)[0], "loss": "much"}])
    with pytest.raises(InputError, match=r"metrics.csv: expected numbers, got .*'much'"):
        plots.loss_curve(folder)
    assert not (folder / "loss_curve.png").exists()
