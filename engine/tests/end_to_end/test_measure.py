"""The programs of engine/measure have configurations that train."""

from pathlib import Path

import benchmark
import programs
import pytest

from seedbed import project
from seedbed.errors import InputError
from tests import running


@pytest.mark.long
def test_the_programs_of_the_benchmark_compose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is composed and checked as it is made. Negative control: a key that is
    none."""
    monkeypatch.setenv(project.PROJECT, str(running.TEMPLATE))
    names = [
        program.name
        for each in benchmark.sections(tmp_path).values()
        for program in each
    ]
    assert {"strict", "fast"} <= set(names)
    with pytest.raises(InputError, match=r"data\.nothing: expected a known key"):
        programs.seedbed("wrong", "data.nothing=1")
