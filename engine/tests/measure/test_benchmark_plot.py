"""The picture of a benchmark can be drawn from its numbers alone."""

import json
from pathlib import Path

import benchmark_plot
from matplotlib.figure import Figure

from tests import pictures
from tests.running import ROOT, called, refusal

MEASURED = ROOT / "docs" / "benchmarks.json"


def test_every_program_is_in_one_group_the_fastest_first() -> None:
    """Of what was measured for docs/; the bare loop is as fast as itself."""
    for workload in json.loads(MEASURED.read_text())["workloads"]:
        groups = benchmark_plot.grouped(workload)
        names = [name for rows in groups.values() for name, _ in rows]
        assert sorted(names) == sorted(workload["rounds"][0])
        for rows in groups.values():
            medians = [speed.median for _, speed in rows]
            assert medians == sorted(medians, reverse=True)
        assert benchmark_plot.speed(workload, workload["base"]) == (1.0, 1.0, 1.0)


def test_the_command_draws_the_numbers_of_docs(tmp_path: Path) -> None:
    """Control: another file is refused in one line, and nothing is drawn."""
    out, readme = tmp_path / "out.png", str(ROOT / "README.md")
    assert "BENCHMARKS" not in refusal(called(benchmark_plot.main, readme, str(out)))
    assert not out.exists()
    with pictures.checked():
        assert called(benchmark_plot.main, str(MEASURED), str(out)).returncode == 0
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_label_that_is_cut_off_is_found() -> None:
    """Negative control of what is checked of pictures."""
    figure = Figure()
    axes = figure.subplots()
    axes.set_xlabel("speed")
    assert pictures.is_whole(figure)
    axes.set_xlabel("speed" * 50)
    assert not pictures.is_whole(figure)
