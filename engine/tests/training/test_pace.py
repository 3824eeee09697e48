"""One hint where threads wait for cores."""

import time

import pytest
import torch

from seedbed.training.pace import Pace


def hints(
    monkeypatch: pytest.MonkeyPatch, share: float, threads: int = 2, is_meant: bool = True
) -> list[str]:
    """Return what is printed in 100 steps of a second that get a share of a core."""
    now = {"wall": 0.0}
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(time, "perf_counter", lambda: now["wall"])
    monkeypatch.setattr(time, "process_time", lambda: share * now["wall"])
    printed: list[str] = []
    pace = Pace(printed.append, 7, is_meant)
    for step in range(8, 108):
        with pace.measured(step):
            now["wall"] += 1
    return printed


def test_waiting_threads_get_one_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an advice that changes no bit first, unless it is followed already."""
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    (line,) = hints(monkeypatch, 0.3)
    assert line.startswith("hint: 2 threads got 0.3 of a core in the first steps")
    assert line.index("OMP_WAIT_POLICY=PASSIVE") < line.index("determinism.threads=1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "PASSIVE")
    (line,) = hints(monkeypatch, 0.3)
    assert "OMP_WAIT_POLICY" not in line
    # With the cores that they need, one thread, or steps that wait for something else.
    for others in ((1.0, 2, True), (0.3, 1, True), (0.3, 2, False)):
        assert hints(monkeypatch, *others) == []
