"""What a run prints reaches the terminal and train.log."""

import sys
from pathlib import Path

import pytest

from seedbed.record import terminal


def test_both_streams_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.tee_output(tmp_path / "train.log"):
        print("epoch 1")
        print("odd", file=sys.stderr)
    assert (tmp_path / "train.log").read_text() == "epoch 1\nodd\n"
    assert tuple(capsys.readouterr()) == ("epoch 1\n", "odd\n")
