"""The note on cores that other processes use."""

import math
from types import SimpleNamespace

import pytest

from seedbed.training import cores


@pytest.mark.parametrize(
    ("step_seconds", "share", "measures", "noted"),
    [
        (0.02, 0.5, True, True),
        (0.8, 0.5, True, True),  # known after four steps
        (0.02, 0.95, True, False),
        (0.02, 0.5, False, False),  # it waits for a GPU or for other ranks
        (0.001, 0.5, True, False),  # too short to tell from
    ],
)
def test_a_training_without_its_cores_notes_that_once(
    step_seconds: float,
    share: float,
    measures: bool,
    noted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time between the steps, in which batches are loaded, does not count.

    Negative controls: a thread that runs, one that waits on purpose, a short run.
    """
    seconds = {"wall": 0.0, "thread": 0.0}
    clocks = SimpleNamespace(
        perf_counter=lambda: seconds["wall"], thread_time=lambda: seconds["thread"]
    )
    monkeypatch.setattr(cores, "time", clocks)
    lines = list[str]()
    counts = list[int]()  # of steps until each line
    core_share = cores.CoreShare(lines.append, measures)
    for step in range(cores._STEPS * 2):
        seconds["wall"] += 1.0
        with core_share:
            seconds["wall"] += step_seconds
            seconds["thread"] += step_seconds * share
        counts += [step] * (len(lines) - len(counts))
    assert len(lines) == noted
    assert counts in ([], [min(cores._STEPS, math.ceil(3 / step_seconds))])
    assert all(f"a core for {share:.0%} of the time" in line for line in lines)
