"""The test is of the best weights; the last ones are tested too, and are what a run ends with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedbed import config, fingerprint, record
from seedbed.data.positions import Position
from seedbed.errors import InputError
from seedbed.tools import weights
from seedbed.training import checkpoint
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import Progress
from seedbed.worker import parts, run_logger
from tests.running import typed
from tests.tiny.data import Noisy
from tests.ways import differences
from tests.worker.runs import EARLY_STOPPING, LSTM

pytestmark = pytest.mark.usefixtures("this_process_trains")

BEST, LAST = 12, 20  # steps; the validation loss is larger at the last one


def evaluated(run: Path, name: str) -> tuple[dict[str, float], str, str]:
    """Test a checkpoint anew: values, predictions as a table, and the hash of the weights."""
    settings = config.typed(record.read_config(run))
    path = run / "checkpoints" / name
    training, source, _ = weights.of_checkpoint(settings, path, "test")
    batches = parts.evaluation_batches(settings, source, Shards())
    result = evaluate(training, batches, Shards())
    assert result.predictions is not None
    table = run_logger.predictions_csv(result.targets, result.predictions)
    tensors = [*training.model.parameters(), *training.model.buffers()]
    return result.values, table, fingerprint.text(int(fingerprint.of_tensors(tensors)))


def named(prefix: str, metrics: dict[str, float]) -> dict[str, float]:
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


def test_the_best_weights_are_tested_and_the_last_ones_stay(whole: Callable[..., Path]) -> None:
    run = whole(*LSTM, *EARLY_STOPPING)
    summary, log = record.read_summary(run), (run / "train.log").read_text()
    values, table, _ = evaluated(run, "best.pt")
    last_values, last_table, last_weights = evaluated(run, "last.pt")
    assert named("test_", summary["metrics"]) == values
    assert named("last_test_", summary["metrics"]) == last_values
    assert (run / "test_predictions.csv").read_text() == table
    assert summary["fingerprints"]["weights"] == last_weights
    assert (summary["best_step"], summary["tested_step"], summary["steps"]) == (BEST, BEST, LAST)
    rows = [row for row in record.read_metrics(run) if row["phase"] == "test"]
    found = [(row["step"], float(row["loss"])) for row in rows]
    assert found == [(str(LAST), last_values["loss"]), (str(BEST), values["loss"])]
    assert f"tested the best weights (step {BEST})" in log
    assert values != last_values, "negative control"
    assert table != last_table, "negative control"


class Drawn(Noisy):
    """Draws a part of its samples where it is built."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.table = torch.randn(samples)

    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        return point + self.table[index], label


@pytest.mark.parametrize("has_test_set", [False, True])
def test_the_validation_set_is_the_same_where_it_is_tested(has_test_set: bool) -> None:
    """Also one that draws; negative control: a test set of the same class has other samples."""
    spec = {"_target_": f"{__name__}.Drawn", "samples": 8}
    settings = typed(data={"validation": spec, "test": spec if has_test_set else None})
    batches = [
        parts.build_source(settings, split)[Position(0, np.arange(4))]
        for split in ("validation", "test")
    ]
    assert torch.equal(*(batch.inputs for batch in batches)) != has_test_set


def test_the_last_weights_are_tested_where_that_is_chosen(whole: Callable[..., Path]) -> None:
    """Which changes no bit of the training."""
    run = whole(*LSTM, *EARLY_STOPPING, "trainer.test_weights=last")
    summary, values = record.read_summary(run), evaluated(run, "last.pt")[0]
    assert named("test_", summary["metrics"]) == values
    assert not named("last_test_", summary["metrics"])
    assert summary["tested_step"] == LAST
    other = whole(*LSTM, *EARLY_STOPPING)
    assert not {"fingerprints.csv", "last.pt: model"} & set(differences(run, other))


def test_one_test_is_enough_where_the_last_weights_are_the_best(whole: Callable[..., Path]) -> None:
    """Negative control for early stopping as well: this run did not stop early."""
    summary = record.read_summary(whole(*LSTM))
    assert summary["best_step"] == summary["tested_step"] == summary["steps"]
    assert not named("last_test_", summary["metrics"])
    assert summary["stopped_early"] is None


@pytest.mark.parametrize("step", [4, None])
def test_other_best_weights_than_the_run_knows_of_are_refused(
    step: int | None, tmp_path: Path
) -> None:
    model = torch.nn.Linear(1, 1)
    if step is not None:
        checkpoint.save_best(tmp_path, model, Progress(step, best_step=step, best_metric=0.5))
    with (
        pytest.raises(InputError, match=r"best\.pt: expected "),
        checkpoint.best_weights(tmp_path, 8, model, torch.device("cpu")),
    ):
        pass
