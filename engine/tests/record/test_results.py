"""The values of a run's weights by step, and which weights are the best."""

import math

import pytest

from seedbed.record import Monitor, Results, results
from seedbed.record.results import EpochMeans, is_mean

ROWS: list[dict[str, object]] = [
    {
        "step": "1",
        "epoch": "0.5",
        "phase": "train",
        "loss": "2.0",
        "learning_rate": "0.1",
    },
    {
        "step": "2",
        "epoch": "1.0",
        "phase": "validation",
        "loss": "1.5",
        "accuracy": "0.9",
    },
    {
        "step": "3",
        "epoch": "1.5",
        "phase": "train",
        "loss": "1.0",
        "learning_rate": "0.1",
    },
    {
        "step": "4",
        "epoch": "2.0",
        "phase": "validation",
        "loss": "1.25",
        "accuracy": "0.8",
    },
    {"step": "4", "epoch": "2.0", "phase": "test", "loss": "1.125", "accuracy": ""},
    {"step": "2", "epoch": "1.0", "phase": "test", "loss": "1.75", "accuracy": ""},
]


def test_values_of_one_step_stand_together() -> None:
    found = Results(ROWS)
    assert found.last_step == 4
    best = {"validation_loss": 1.5, "validation_accuracy": 0.9, "test_loss": 1.75}
    assert found.of(2) == best
    last = {"validation_loss": 1.25, "validation_accuracy": 0.8, "test_loss": 1.125}
    assert found.of(4) == last
    assert found.last() == {"train_loss": 1.0, **last}
    assert found.of(3) == {}
    one_by_one = Results()
    for row in ROWS:
        one_by_one.add([row])
    assert (one_by_one.of(2), one_by_one.last()) == (best, found.last())
    assert (Results().last(), Results().last_step) == ({}, 0)


@pytest.mark.parametrize(
    ("values", "higher", "lower"),
    [
        ([3.0, 1.0, 2.0], 1, 2),
        ([math.nan, 2.0, 2.0, math.inf, -math.inf], 2, 2),  # the first of equal ones
        ([math.nan], 0, 0),
        ([], 0, 0),
    ],
)
def test_the_best_step_is_that_of_the_first_best_finite_value(
    values: list[float], higher: int, lower: int
) -> None:
    rows = [
        {"step": step, "phase": "validation", "f1": repr(value), "loss": "0.0"}
        for step, value in enumerate(values, 1)
    ]
    found = Results(rows)
    steps = found.best_step(Monitor("f1", True)), found.best_step(Monitor("f1", False))
    assert steps == (higher, lower)


def test_names_tell_the_last_weights_from_those_that_count() -> None:
    summary = {
        "metrics": {"test_loss": 1.0},
        "last_metrics": {"test_loss": 2.0, "train_loss": 3.0},
    }
    named = {"test_loss": 1.0, "last_test_loss": 2.0, "last_train_loss": 3.0}
    assert results.by_name(summary) == named
    assert results.by_name({"metrics": None}) == {}


def test_means_go_on_with_the_sums_of_an_unfinished_epoch() -> None:
    """Not every value is there in every step; the next epoch begins with none."""
    first = EpochMeans()
    first.add({"loss": 1.0, "f1": 0.5})
    second = EpochMeans(first.sums)
    second.add({"loss": 2.0})
    assert second.end_epoch() == {"loss_epoch": 1.5, "f1_epoch": 0.5}
    assert second.end_epoch() == {}


def test_means_leave_out_a_value_that_a_step_has_no_samples_for() -> None:
    means = EpochMeans()
    for accuracy in (1.0, math.nan, 0.5):
        means.add({"loss": 1.0, "accuracy": accuracy})
    assert means.end_epoch() == {"loss_epoch": 1.0, "accuracy_epoch": 0.75}


def test_a_name_that_ends_as_means_do_may_be_of_a_method() -> None:
    columns = {"loss": "1", "loss_epoch": "1", "current_epoch": "2"}
    assert [is_mean(name, columns) for name in columns] == [False, True, False]
