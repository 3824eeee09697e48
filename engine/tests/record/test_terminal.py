"""What a run prints reaches the terminal and train.log, with a prefix where runs share one."""

import sys
from pathlib import Path

import pytest

from seedbed.record import terminal


def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Print half a line, the rest and one that is never ended; return the terminal's text."""
    with terminal.tee_output(tmp_path / "train.log"):
        print("epoch ", end="", flush=True)
        print("1\nloss 2")
        print("half", end="")
        print("odd", file=sys.stderr)
    assert (tmp_path / "train.log").read_text() == "epoch 1\nloss 2\nhalfodd\n"
    captured = capsys.readouterr()
    return captured.out + captured.err


def test_lines_of_runs_side_by_side_are_whole_and_have_a_prefix(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a line is shown before all of it is; train.log has no prefix."""
    monkeypatch.setenv(terminal.PREFIX, "3: ")
    assert shown(tmp_path, capsys) == "3: epoch 1\n3: loss 2\n3: half\n3: odd\n"


def test_a_run_alone_has_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Negative control: the text is as it was printed."""
    assert shown(tmp_path, capsys) == "epoch 1\nloss 2\nhalfodd\n"
