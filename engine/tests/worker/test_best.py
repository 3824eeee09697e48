"""The best weights of a run are those that its checkpoint knows of, wherever it was killed."""

import os
from pathlib import Path
from typing import Any

import pytest

from seedbed import record
from seedbed.training import checkpoint
from seedbed.worker import best


class Killed(BaseException):
    """Stands for SIGKILL."""


def save(folder: Path, step: int) -> None:
    state = {"format_version": record.FORMAT_VERSION, "step": step, "metric": 0.5, "model": {}}
    best.save(state, folder)


def steps(folder: Path) -> dict[str, int]:
    """Return the step of each file of weights; nothing else may be there."""
    return {path.name: checkpoint.load(path)["step"] for path in folder.iterdir()}


@pytest.mark.parametrize("comes_again", [True, False])
def test_the_best_weights_that_the_checkpoint_knows_of_come_back(
    comes_again: bool, tmp_path: Path
) -> None:
    """Newer ones are kept under a name of their own, unless the run comes to them again."""
    save(tmp_path, 40)
    best.settle(tmp_path)
    save(tmp_path, 70)
    save(tmp_path, 80)
    message = best.restore(tmp_path, 40, comes_again)
    if comes_again:
        assert (message, steps(tmp_path)) == (None, {"best.pt": 40})
    else:
        assert steps(tmp_path) == {"best.pt": 40, "best_of_step_80.pt": 80}
        assert "best_of_step_80.pt" in (message or "")


def test_best_weights_that_the_checkpoint_knows_of_stay(tmp_path: Path) -> None:
    """Twin: killed after the checkpoint, before the older ones were forgotten."""
    save(tmp_path, 40)
    save(tmp_path, 70)
    assert best.restore(tmp_path, 70, comes_again=False) is None
    assert steps(tmp_path) == {"best.pt": 70}


def test_best_weights_of_a_run_that_starts_over_are_gone(tmp_path: Path) -> None:
    """There is no best one before the first validation."""
    save(tmp_path, 40)
    best.restore(tmp_path, 0, comes_again=True)
    assert steps(tmp_path) == {}


def test_killed_at_any_write_the_known_best_weights_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each rename of a save."""
    kills = 0
    for place in range(10):
        folder = tmp_path / str(place)
        folder.mkdir()
        save(folder, 40)
        best.settle(folder)
        calls = iter(range(place))
        original = os.replace

        def deadly(*args: Any, calls: Any = calls, original: Any = original) -> None:
            if next(calls, None) is None:
                raise Killed
            original(*args)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", deadly)
            try:
                save(folder, 70)
            except Killed:
                kills += 1
        best.restore(folder, 40, comes_again=True)
        assert checkpoint.load(folder / checkpoint.BEST)["step"] == 40
    assert 2 < kills < 10
