"""Metrics of torchmetrics by YAML: over a whole set, whoever had which batch of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedbed import record
from seedbed.config import build
from seedbed.data.positions import Position
from seedbed.data.source import Batch
from seedbed.methods import Supervised
from seedbed.tasks import Classification
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from tests.worker.runs import of_method, trained

pytestmark = pytest.mark.zoo
pytest.importorskip("torchmetrics", reason="of the dependency group zoo")

ALL = "torchmetrics.classification"
SPECS: dict[str, dict[str, Any]] = {
    "f1": {"_target_": f"{ALL}.MulticlassF1Score", "num_classes": 3},
    "auroc": {"_target_": f"{ALL}.MulticlassAUROC", "num_classes": 3},  # keeps all outputs
    "calibration": {"_target_": f"{ALL}.MulticlassCalibrationError", "num_classes": 3},
    "kappa": {"_target_": f"{ALL}.MulticlassCohenKappa", "num_classes": 3},  # a matrix of counts
}
SAMPLES, BATCH = 50, 8
ON_COMMAND_LINE = tuple(
    f"+metrics.{name}={{{','.join(f'{key}:{value}' for key, value in spec.items())}}}"
    for name, spec in SPECS.items()
)


def evaluated(processes: Any, cut: int = BATCH, most: int = SAMPLES) -> dict[str, float]:
    """Return the values of an evaluation that processes share."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    inputs, targets = torch.randn(SAMPLES, 4), torch.randint(3, (SAMPLES,))
    shards = Shards(2, lambda: False, processes)
    positions = [Position(0, np.arange(i, min(i + cut, SAMPLES))) for i in range(0, SAMPLES, cut)]
    batches = [
        Batch(torch.from_numpy(each.ids), inputs[each.ids], targets[each.ids])
        for each in shards.share(positions[:most])
    ]
    training = TrainingState(
        model,
        {"optimizer": torch.optim.SGD(model.parameters(), 0.1)},
        Supervised(Classification()),
        torch.device("cpu"),
        metrics={
            name: build.build({**spec, "sync_on_compute": False}, name)
            for name, spec in SPECS.items()
        },
    )
    return evaluate(training, batches, shards).values


def test_a_metric_is_of_the_whole_set_on_any_number_of_processes() -> None:
    """As torchmetrics computes it of all samples at once; not the mean over batches."""
    alone = evaluated(None)
    from tests.distributed.test_distributed import in_processes

    assert in_processes(2, evaluated) == dict.fromkeys(range(2), alone)
    at_once = evaluated(None, cut=SAMPLES)
    assert {name: pytest.approx(alone[name]) for name in SPECS} == {
        name: at_once[name] for name in SPECS
    }
    assert evaluated(None, most=1)["f1"] != pytest.approx(alone["f1"]), "negative control"


@pytest.mark.usefixtures("this_process_trains")
def test_a_run_follows_a_metric(tmp_path: Path) -> None:
    """best.pt is the one with the highest F1, which needs no trainer.mode."""
    run = trained(
        tmp_path / "run", *of_method("FineTuning", "trainer.monitor=f1", *ON_COMMAND_LINE)
    )
    rows = [row for row in record.read_metrics(run) if row["phase"] == "validation"]
    summary = record.read_summary(run)
    best = summary["metrics"]["best_validation_f1"]
    assert best == max(float(row["f1"]) for row in rows)
    assert {"validation_auroc", "test_f1", "validation_accuracy"} <= summary["metrics"].keys()
