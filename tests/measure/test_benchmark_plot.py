"""The picture of a benchmark can be drawn from its numbers alone."""

import json
from pathlib import Path

import benchmark_plot

from tests.running import ROOT, called, command, refusal

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
    script, out = "scripts/measure/benchmark_plot.py", tmp_path / "out.png"
    readme = str(ROOT / "README.md")
    assert "BENCHMARKS" not in refusal(called(benchmark_plot.main, readme, str(out)))
    assert not out.exists()
    assert command(script, str(MEASURED), str(out)).returncode == 0
    assert out.read_bytes().startswith(b"\x89PNG")
