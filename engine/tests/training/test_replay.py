"""Replays: a step is taken twice from one state, in the middle of a run."""

import random

import pytest

from seedbed.errors import InputError
from tests.run.cases import HARMFUL, HARMLESS, Case, forward
from tests.training.steps import run

SYSTEM = random.SystemRandom()


@pytest.mark.parametrize(
    ("name", "shards"),
    [
        ("Remembers", 1),
        ("freezes", 1),
        ("SAM", 1),
        ("draws_seeded", 1),
        ("Lookahead", 3),
    ],
)
def test_replayed_steps_change_no_bit(name: str, shards: int) -> None:
    whole = run(HARMLESS[name], shards=shards)
    assert run(HARMLESS[name], every_steps=2, shards=shards).rows == whole.rows


def test_a_step_that_does_not_repeat_is_refused_before_it_counts() -> None:
    """By draws that no seed controls, and by state that the restored model lacks.

    Negative control: the same draws pass where no step is replayed.
    """
    unseeded = forward(lambda self, x: self.head(x + SYSTEM.random()))
    assert len(run(unseeded).rows) == 6
    for case in (unseeded, HARMFUL["counts"]):
        with pytest.raises(
            InputError,
            match="step 4 was taken twice from one state and differs \\(loss\\)",
        ):
            run(case, every_steps=4)
    assert len(run(Case(), every_steps=4).rows) == 6
