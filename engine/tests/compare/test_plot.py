"""The picture of two runs shows what the records hold, and names what it shows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from seedbed import compare
from seedbed.compare import plot
from seedbed.errors import InputError
from seedbed.record import plots
from tests import pictures
from tests.made_up_runs import fingerprint_rows, metrics, write_run
from tests.record.test_plots import size


@pytest.fixture(autouse=True)
def well_drawn() -> Iterator[None]:
    with pictures.checked():
        yield


def comparison_figure(a: Path, b: Path) -> Figure:
    record_a, record_b = compare.read(a), compare.read(b)
    return plot.comparison_figure(record_a, record_b, compare.compare(record_a, record_b))


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
    assert figure.axes[0].get_title() == "the runs diverge at step 26: training loss"


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


def test_a_comparison_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    """A folder that is not there: one line with the name and the system's reason."""
    run = compare.read(write_run(tmp_path / "run"))
    out = tmp_path / "nowhere" / "comparison.png"

    with pytest.raises(InputError, match=r"nowhere/comparison.png: .* got No such file"):
        plot.draw(run, run, compare.compare(run, run), out)


def words(axes: Any) -> list[str]:
    """Return what is written into a panel."""
    return [text.get_text() for text in axes.texts]


def test_the_picture_names_the_runs_and_every_line(tmp_path: Path) -> None:
    """A legend entry for each curve and for the guide at the first difference; both axes say what
    they show."""
    rows = [{**row, "loss": repr(2 * float(row["loss"]))} for row in metrics(40)]
    figure = comparison_figure(
        write_run(tmp_path / "adamw"), write_run(tmp_path / "sgd", rows=rows)
    )
    above, below = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "A: adamw, training",
        "B: sgd, training",
        "first difference, step 1",
        "A: adamw, validation",
        "B: sgd, validation",
    ]
    assert above.get_ylabel() == "loss"
    assert below.get_ylabel().split() == ["difference", "of", "the", "training", "losses"]
    ticks = [text.get_text() for text in below.get_yticklabels()]
    assert "exactly 0" not in ticks, "no step is"


def test_the_title_names_the_setting_that_differs(tmp_path: Path) -> None:
    """That which explains the difference best; control: nothing differs but the losses."""
    rows = [{**row, "loss": repr(2 * float(row["loss"]))} for row in metrics(40)]
    a = write_run(tmp_path / "a", config={"seed": 0})
    b = write_run(tmp_path / "b", config={"seed": 1}, rows=rows)
    c = write_run(tmp_path / "c", config={"seed": 0}, rows=rows)
    title = "the runs diverge at step 1: training loss"
    assert comparison_figure(a, b).axes[0].get_title() == f"{title}\nseed: 0 in A, 1 in B"
    assert comparison_figure(a, c).axes[0].get_title() == title


def test_long_names_do_not_widen_the_legend_beyond_the_picture(tmp_path: Path) -> None:
    """Both ends of a name are kept."""
    a, b = write_run(tmp_path / ("a" * 80)), write_run(tmp_path / ("b" * 60 + "c"))
    with plots.style():
        figure = comparison_figure(a, b)
        figure.draw_without_rendering()
    (legend,) = figure.legends
    assert figure.bbox.x0 <= legend.get_window_extent().x0
    assert legend.get_window_extent().x1 <= figure.bbox.x1
    assert legend.get_texts()[1].get_text().endswith("c, training")


def test_a_difference_of_nothing_but_zeros_is_called_exactly_0(tmp_path: Path) -> None:
    """Negative control: one loss that differs, and it is not."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    remark = "exactly 0 at each of the 40 steps that both logged"
    assert words(comparison_figure(a, b).axes[1]) == [remark]
    rows = metrics(40)
    rows[10]["loss"] = "9.0"
    assert words(comparison_figure(a, write_run(tmp_path / "c", rows=rows)).axes[1]) == []


def test_every_pair_of_runs_has_a_picture_of_its_own(tmp_path: Path) -> None:
    """The file is named after both runs, by as many folders as it takes to tell them apart."""
    places = ("x/run", "x/other $1", "y/run")
    a, b, c = (compare.read(write_run(tmp_path / place)) for place in places)
    assert plot.file_name(a, b) == "comparison_run_other-1.png"
    assert plot.file_name(a, c) == "comparison_x-run_y-run.png"
    assert plot.file_name(a, a) == "comparison_run_run.png"
