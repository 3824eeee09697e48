"""The writer of a run folder: what it is given is on disk, and read in one piece."""

import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from seedbed import record, writer
from seedbed.names import STAGES


class OneByOne(TorchDispatchMode):
    """Counts scalars that are read by themselves, each of which waits for a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, _types: object, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        return function(*args, **(kwargs or {}))


def test_scalars_of_all_steps_are_read_together_and_exactly(tmp_path: Path) -> None:
    """Losses, metrics and rates of any dtype or shape of one element.

    Negative control: a float of a tensor is counted.
    """
    values: dict[str, Any] = {
        "loss": torch.tensor(0.1),
        "accuracy": torch.tensor([[1 / 3]], dtype=torch.float64),
        "count": torch.tensor(2**40 + 1),
        "half": torch.tensor(0.1, dtype=torch.bfloat16),
        "flag": torch.tensor(True),
        "learning_rate": 1e-3,
    }
    rows = writer.Writer(tmp_path)
    with OneByOne() as reading:
        for step in (1, 2):
            stages = torch.arange(len(STAGES)) + step
            assert rows.note("train", step, values, stages) == step
        noted, fingerprints = rows.take()
    assert reading.count == 0
    expected = {name: float(value) for name, value in values.items()}
    assert [each.values for each in noted] == [expected, expected]
    assert [row["step"] for row in fingerprints] == ["1", "2"]
    assert rows.take() == ([], [])
    with OneByOne() as reading:
        assert math.isfinite(float(values["loss"]))
    assert reading.count == 1


def test_what_waits_is_kept_if_reading_is_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the device is waited for, or its failure."""
    rows = writer.Writer(tmp_path)
    rows.note("train", 1, {"loss": torch.tensor(0.5)}, torch.ones(len(STAGES)).long())
    for name in ("_numbers", "fingerprint"):
        with monkeypatch.context() as patch:
            patch.setattr(writer, name, Mock(side_effect=KeyboardInterrupt))
            if name == "fingerprint":
                getattr(writer, name).rows.side_effect = KeyboardInterrupt
            with pytest.raises(KeyboardInterrupt):
                rows.take()
    noted, fingerprints = rows.take()
    assert len(noted) == len(fingerprints) == 1


def test_rows_have_every_digit_and_summaries_their_values(tmp_path: Path) -> None:
    rows = writer.Writer(tmp_path)
    rows.append([writer.row("train", 3, {"loss": 0.1 + 0.2}, epoch="0.5")])
    rows.append([writer.row("validation", 3, {"loss": 1 / 3, "accuracy": 0.5})])
    rows.append([writer.row("test", 3, {"loss": 2 / 3})])
    rows.close()
    read = record.read_metrics(tmp_path)
    assert [float(row["loss"]) for row in read] == [0.1 + 0.2, 1 / 3, 2 / 3]
    assert [row["epoch"] for row in read] == ["0.5", "", ""]
    assert rows.results.tested_step == 3
    assert [*rows.results.names] == ["loss", "accuracy"]
    summary = rows.summary(record.Monitor("accuracy", True), 3, 3, [], None)
    assert summary["metrics"] == {
        "validation_loss": 1 / 3,
        "validation_accuracy": 0.5,
        "test_loss": 2 / 3,
    }
    assert summary["last_metrics"] == {"train_loss": 0.1 + 0.2} | summary["metrics"]
    assert (
        writer.Writer(tmp_path, lambda _row: True).results.last()
        == (summary["last_metrics"])
    )


@pytest.mark.parametrize(
    ("a", "b", "differing"),
    [
        ({"step": "1", "loss": "0.5"}, {"step": "1", "loss": "0.5"}, []),
        ({"loss": "0.5", "kl": ""}, {"loss": "0.5"}, []),
        ({"loss": "0.5", "kl": "1"}, {"loss": "0.25", "lr": "1"}, ["loss", "kl", "lr"]),
    ],
)
def test_rows_differ_in_the_cells_that_one_of_them_has_otherwise(
    a: record.Row, b: record.Row, differing: list[str]
) -> None:
    assert record.differing(a, b) == differing
    assert record.differing(b, a, [*a, *b][:1]) == differing[:1]
