"""The test is of the best weights; the last ones are tested too, and are what a run ends with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedbed import record
from seedbed.data.positions import Position
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.training import checkpoint
from seedbed.training.state import Progress, TrainingState
from seedbed.worker import parts
from tests.running import typed
from tests.ways import differences
from tests.worker.runs import EARLY_STOPPING, LSTM

pytestmark = pytest.mark.usefixtures("this_process_trains")

BEST, LAST = 12, 20  # steps; the validation loss is larger at the last one


def results(run: Path) -> tuple[dict[str, Any], dict[int, float]]:
    """Return the summary, and the losses of tests by step."""
    rows = [row for row in record.read_metrics(run) if row["phase"] == "test"]
    return record.read_summary(run), {int(row["step"]): float(row["loss"]) for row in rows}


def test_the_best_weights_are_tested_and_the_last_ones_stay(whole: Callable[..., Path]) -> None:
    """tools/test_evaluate.py tests both anew. Which are tested changes no bit of the training."""
    run = whole(*LSTM, *EARLY_STOPPING)
    summary, losses = results(run)
    assert (summary["best_step"], summary["tested_step"], summary["steps"]) == (BEST, BEST, LAST)
    assert list(losses) == [LAST, BEST]
    assert losses[BEST] < losses[LAST]
    assert summary["metrics"]["test_loss"] == losses[BEST]
    assert summary["metrics"]["last_test_loss"] == losses[LAST]
    other = whole(*LSTM, *EARLY_STOPPING, "trainer.test_weights=last")
    last, last_losses = results(other)
    assert (last["tested_step"], last_losses) == (LAST, {LAST: losses[LAST]})
    assert last["metrics"]["test_loss"] == losses[LAST]
    assert "last_test_loss" not in last["metrics"]
    assert last["fingerprints"]["weights"] == summary["fingerprints"]["weights"]
    assert set(differences(run, other)) == {
        "metrics.csv", "test_predictions.csv", "summary: metrics", "summary: fingerprints",
    }  # fmt: skip


def test_one_test_is_enough_where_the_last_weights_are_the_best(whole: Callable[..., Path]) -> None:
    """Negative control for early stopping as well: this run did not stop early."""
    summary, losses = results(whole(*LSTM))
    assert summary["best_step"] == summary["tested_step"] == summary["steps"]
    assert list(losses) == [summary["steps"]]
    assert summary["stopped_early"] is None


@pytest.mark.parametrize("has_test_set", [False, True])
def test_the_validation_set_is_the_same_where_it_is_tested(has_test_set: bool) -> None:
    """Also one that draws; negative control: a test set of the same class has other samples."""
    spec = {"_target_": "tests.data.loading.Drawn", "samples": 8}
    settings = typed(data={"validation": spec, "test": spec if has_test_set else None})
    batches = [
        parts.build_source(settings, split)[Position(0, np.arange(4))]
        for split in ("validation", "test")
    ]
    assert torch.equal(*(batch.inputs for batch in batches)) != has_test_set


@pytest.mark.parametrize("step", [4, None])
def test_other_best_weights_than_the_run_knows_of_are_refused(
    step: int | None, tmp_path: Path
) -> None:
    state = TrainingState(torch.nn.Linear(1, 1), {}, Supervised(), torch.device("cpu"))
    if step is not None:
        checkpoint.save_best(tmp_path, state.model, Progress(step, best_step=step, best_metric=0.5))
    with (
        pytest.raises(InputError, match=r"best\.pt: expected "),
        checkpoint.best_weights(tmp_path, 8, state),
    ):
        pass
