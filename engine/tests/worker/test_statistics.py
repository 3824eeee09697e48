"""Statistics of the training samples: computed once, recorded, and the same wherever they go."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import seedbed
from seedbed import record
from tests.tiny import FEATURES
from tests.tiny.data import Noisy
from tests.tiny.models import Dense
from tests.worker.runs import of_method, resumed, trained

pytestmark = pytest.mark.usefixtures("this_process_trains")

CALL = "statistics of 48 samples"


class Points(Noisy):
    """Points that are standardised once their statistics are known."""

    def __init__(self, samples: int, statistics: Any = None) -> None:
        super().__init__(samples)
        self.points = torch.arange(samples * FEATURES).view(samples, FEATURES) / samples
        self.statistics = statistics

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point = self.points[index]
        if self.statistics is not None:
            point = (point - torch.tensor(self.statistics["mean"])) / self.statistics["deviation"]
        return point, index % 3


def of_points(dataset: Points) -> Mapping[str, Any]:
    """Return the mean of each feature and the deviation of all, as arrays."""
    print(f"statistics of {len(dataset)} samples")
    return {"mean": dataset.points.mean(0), "deviation": dataset.points.numpy().std()}


class Knowing(Dense):
    """Keeps what it was given."""

    def __init__(self, statistics: Mapping[str, Any], **options: Any) -> None:
        super().__init__(**options)
        self.given = statistics


ASKING = {"data.train": "Points", "data.validation": "Points", "data.test": "Points",
          "model": "Knowing"}  # fmt: skip
WORDS = of_method(
    "FineTuning",
    *(f"{key}._target_={__name__}.{name}" for key, name in ASKING.items()),
    *(f"+{key}.statistics=null" for key in ASKING),
    f"+data.statistics._target_={__name__}.of_points",
)


def test_statistics_are_computed_once_and_reach_whoever_asks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the training samples alone; a run that is stopped, resumed or loaded has the same.

    Negative control: without the function null stays null, and batches are others.
    """
    run = trained(tmp_path / "run", *WORDS)
    assert capsys.readouterr().out.count(CALL) == 1, "also with a rehearsal"
    settings: Any = record.read_config(run)
    expected = Points(48).points
    assert list(settings.model.statistics.mean) == expected.mean(0).tolist()
    for split in ("train", "validation", "test"):
        assert settings.data[split].statistics == settings.model.statistics
    resumed(tmp_path / "stopped", run, 9, *WORDS)
    model: Any = seedbed.load(run, trust=["tests"])
    assert model.given == settings.model.statistics
    assert capsys.readouterr().out.count(CALL) == 1, "of the run that was stopped"
    plain = trained(tmp_path / "plain", *WORDS, "~data.statistics")
    first, second = (record.read_fingerprints(each)[0] for each in (run, plain))
    assert first["sample_ids"] == second["sample_ids"]
    assert first["batch"] != second["batch"]
