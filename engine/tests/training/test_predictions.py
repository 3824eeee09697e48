"""The table of predictions has each target, prediction and probability, with the
samples' names."""

import csv
import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from seedbed.methods import Supervised
from seedbed.pipeline.source import Batch
from seedbed.tasks import Classification, Regression
from seedbed.training import predictions
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState


class Labels(Regression):
    """Several labels for each sample."""

    def predictions(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        return outputs.sigmoid()


def table(
    task: Any, outputs: Tensor, targets: Tensor, dataset: Any = None, most: int = 100
) -> list[dict[str, str]]:
    """Return the rows of the table for a model that returns its inputs, in batches of
    two."""
    training = TrainingState(nn.Identity(), {}, Supervised(task), torch.device("cpu"))
    ids = torch.arange(len(outputs)).split(2)
    batches = map(Batch, ids, outputs.split(2), targets.split(2))
    result = evaluate(
        replace(training, method=Supervised(task)), batches, Shards(), most
    )
    return list(csv.DictReader(io.StringIO(predictions.table(result, dataset))))


OUTPUTS = torch.tensor([[1.0, -2.0, 0.5], [0.25, 4.0, -1.0], [-3.0, 0.0, 2.0]])


def column(rows: list[dict[str, str]], *names: str) -> list[list[float]]:
    return [[float(row[name]) for name in names] for row in rows]


@pytest.mark.parametrize("labels", [True, False])
def test_each_target_and_prediction_of_a_sample_has_a_column(labels: bool) -> None:
    targets = torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    rows = table(Labels() if labels else Regression(), OUTPUTS, targets)
    names = [
        [f"{what}_{n}" for n in range(3)]
        for what in ("target", "prediction", "probability")
    ]
    count = 3 if labels else 2
    assert [*rows[0]] == [
        "sample_id",
        *(name for each in names[:count] for name in each),
    ]
    assert [row["sample_id"] for row in rows] == ["0", "1", "2"]
    assert column(rows, *names[0]) == targets.tolist()
    assert column(rows, *names[1]) == (OUTPUTS > 0 if labels else OUTPUTS).tolist()
    if labels:
        assert column(rows, *names[2]) == OUTPUTS.sigmoid().tolist()


def test_a_class_is_one_column_and_its_probabilities_several() -> None:
    rows = table(Classification(), OUTPUTS, torch.tensor([0, 1, 0]))
    assert column(rows, "target", "prediction") == [[0, 0], [1, 1], [0, 2]]
    names = [f"probability_{n}" for n in range(3)]
    assert [*rows[0]] == ["sample_id", "target", "prediction", *names]
    assert column(rows, *names) == OUTPUTS.softmax(1).tolist()
    few = table(Classification(), OUTPUTS, torch.tensor([0, 1, 0]), most=2)
    assert [*few[0]] == ["sample_id", "target", "prediction"]


def test_predictions_of_all_pixels_are_no_table() -> None:
    """The first target of each sample stands for many. Negative control: as many as are
    written."""
    for side, count in ((11, None), (10, 100)):
        values = torch.rand(2, side, side)
        rows = predictions.rows_of(values, 2)
        assert (
            (rows is None)
            if count is None
            else rows is not None and rows.shape == (2, count)
        )
        assert predictions.targets_of(values, 2, count or 1).shape == (2, count or 1)
    assert predictions.targets_of({"text": "a"}, 2, 1).isnan().all()


class Named:
    """A data set with names, or with the files of torchvision's folders."""

    def __init__(self, count: int, **attributes: Any) -> None:
        self.count = count
        vars(self).update(attributes)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return index


NAMES = ["a.png", "b.png", "c.png"]


@pytest.mark.parametrize(
    ("dataset", "names"),
    [
        (Named(3, names=NAMES), NAMES),
        (Named(3, samples=[(name, 0) for name in NAMES]), NAMES),
        (Subset(Named(3, names=NAMES), [2, 0]), ["c.png", "a.png"]),
        (Named(3, names=["cat", "dog"]), None),  # of classes
        (Named(3, names=lambda: NAMES), None),
        (Named(3, samples=3), None),
        (object(), None),
    ],
)
def test_names_are_those_of_all_samples(dataset: Any, names: list[str] | None) -> None:
    assert predictions.names_of(dataset) == names


def test_names_stand_beside_the_predictions_also_of_a_part() -> None:
    """Fewer samples were evaluated than there are. Negative control: other names."""
    rows = table(Regression(), OUTPUTS[:2, :1], OUTPUTS[:2, 1:2], Named(3, names=NAMES))
    assert [*rows[0]] == ["sample_id", "target", "prediction", "name"]
    assert [row["name"] for row in rows] == NAMES[:2]
