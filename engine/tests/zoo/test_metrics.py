"""Metrics of torchmetrics in YAML: over a whole data set, however processes share
it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from seedbed import record
from tests import tiny
from tests.run import test_losses as labelled
from tests.run.runs import SHORT
from tests.running import trained
from tests.tiny import labels
from tests.ways import differences

pytestmark = pytest.mark.zoo
torchmetrics = pytest.importorskip("torchmetrics", reason="of the dependency group zoo")

KINDS = {
    "f1": "MulticlassF1Score",
    "auroc": "MulticlassAUROC",  # keeps all outputs
    "calibration": "MulticlassCalibrationError",
    "kappa": "MulticlassCohenKappa",  # a matrix of counts
}
METRICS = tuple(
    f"+metrics.{name}={{_target_:torchmetrics.classification.{kind},num_classes:{tiny.CLASSES}}}"
    for name, kind in KINDS.items()
)


def test_a_run_follows_a_metric_of_the_whole_set(tmp_path: Path) -> None:
    """The value is that of torchmetrics for all samples at once, on any number of
    processes.

    best.pt has the highest F1, without trainer.mode. Negative control: the mean over
    batches.
    """
    words = (
        *SHORT,
        *tiny.OVERRIDES,
        "trainer.monitor=f1",
        "trainer.shards=2",
        *METRICS,
    )
    words += ("optimizer.lr=0.02", "data.test.samples=50")
    run, two = (
        trained(tmp_path / n, *words, f"trainer.processes={n}") for n in ("1", "2")
    )
    assert differences(run, two) == []
    rows = [row for row in record.read_metrics(run) if row["phase"] == "validation"]
    found = record.read_summary(run)["metrics"]
    assert found["validation_f1"] == max(float(row["f1"]) for row in rows)
    assert found.keys() >= {f"test_{name}" for name in KINDS} | {"validation_accuracy"}
    path = run / "test_predictions.csv"
    columns = (0, 1, 2)
    table = np.loadtxt(path, int, delimiter=",", skiprows=1, usecols=columns)
    _, targets, predictions = torch.from_numpy(table).T
    f1 = torchmetrics.classification.MulticlassF1Score(num_classes=tiny.CLASSES)
    assert found["test_f1"] == pytest.approx(float(f1(predictions, targets)))
    means = [
        float(f1(predictions[i : i + 16], targets[i : i + 16]))
        for i in range(0, 50, 16)
    ]
    assert found["test_f1"] != pytest.approx(np.mean(means))


def test_accuracy_is_that_of_torchmetrics_over_labelled_samples(tmp_path: Path) -> None:
    """Some samples and whole batches have no label. Negative control: they count as
    mistakes."""
    kind = "torchmetrics.classification.MulticlassAccuracy"
    settings = {"num_classes": tiny.CLASSES, "average": "micro"}
    options = ",".join(f"{key}:{value}" for key, value in settings.items())
    run = trained(
        tmp_path / "run",
        *labelled.UNLABELLED,
        *("optimizer.lr=0.05", "trainer.max_steps=24", "trainer.max_epochs=3"),
        f"+metrics.labelled={{_target_:{kind},{options},ignore_index:{labels.NONE}}}",
    )
    found = record.read_summary(run)["metrics"]
    for part in ("validation", "test"):
        assert found[f"{part}_accuracy"] == pytest.approx(found[f"{part}_labelled"])
    table = np.loadtxt(
        run / "test_predictions.csv", int, delimiter=",", skiprows=1, usecols=(1, 2)
    )
    targets, predictions = table.T
    assert found["test_accuracy"] != pytest.approx((targets == predictions).mean())
