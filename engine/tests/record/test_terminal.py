"""What a run prints reaches the terminal and train.log, with a prefix where runs share one."""

import sys
from pathlib import Path
from typing import Any

import pytest

from seedbed.record import terminal


@pytest.mark.parametrize(
    ("prefix", "shown"),
    [("3: ", "3: epoch 1\n3: loss 2\n3: half\n3: odd\n"), ("", "epoch 1\nloss 2\nhalfodd\n")],
)
def test_lines_of_runs_side_by_side_are_whole_and_have_a_prefix(
    prefix: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    """Nothing of a line is shown before all of it is; control: a run alone. train.log has none."""
    monkeypatch.setenv(terminal.PREFIX, prefix)
    with terminal.tee_output(tmp_path / "train.log"):
        print("epoch ", end="", flush=True)
        print("1\nloss 2")
        print("half", end="")
        print("odd", file=sys.stderr)
    assert (tmp_path / "train.log").read_text() == "epoch 1\nloss 2\nhalfodd\n"
    captured = capsys.readouterr()
    assert captured.out + captured.err == shown
