"""A cell of the table of guarantees is what a comparison of two runs says."""

from pathlib import Path

import guarantees
import pytest

from seedbed import compare
from seedbed.errors import InputError
from tests.made_up_runs import fingerprint_rows, write_run


def test_a_cell_is_what_a_comparison_says(tmp_path: Path) -> None:
    """`same`, or the first step and stage; negative controls: a shorter run, an interrupted one."""
    base = compare.read(write_run(tmp_path / "base", 40))
    assert guarantees.verdict(base, compare.read(write_run(tmp_path / "again", 40))) == "same"
    rows = fingerprint_rows(40)
    rows[2]["gradients"] = "f" * 16
    other = compare.read(write_run(tmp_path / "other", fingerprints=rows))
    assert guarantees.verdict(base, other) == "step 3, gradients"
    shorter = compare.read(write_run(tmp_path / "shorter", 30))
    assert guarantees.verdict(base, shorter) == "30 steps instead of 40"
    stopped = write_run(tmp_path / "stopped", 40, summary={"status": "interrupted"})
    with pytest.raises(InputError, match="expected a finished run"):
        guarantees.verdict(base, compare.read(stopped))
