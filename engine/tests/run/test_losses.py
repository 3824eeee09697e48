"""Runs on samples without labels, with class weights, and by the tasks that are ready
made."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seedbed import record
from seedbed.training import checkpoint
from tests import tiny
from tests.run.runs import SHORT, refused, trained
from tests.running import trained as trained_by_command
from tests.tiny import labels
from tests.tiny.labels import NONE
from tests.tiny.models import Dense
from tests.ways import differences

WEIGHTS = [0.5, 1.0, 4.0]
PARTS = {"train": (64, 0), "validation": (40, 64), "test": (40, 104)}


def words(
    dataset: str, task: dict[str, Any], outputs: int = tiny.CLASSES
) -> tuple[str, ...]:
    """Return a command line; no batch size divides the number of evaluated samples."""
    data = {**tiny.DATA, "task": task, "outputs": outputs, "eval_batch_size": 16}
    for split, (samples, start) in PARTS.items():
        target = f"tests.tiny.labels.{dataset}"
        data[split] = {"_target_": target, "samples": samples, "start": start}
    model = {**tiny.DENSE, "outputs": outputs, "dropout": 0.0}
    return (*SHORT, *tiny.overrides(model, data), "trainer.max_steps=4")


def whole(part: str) -> tuple[Tensor, Tensor]:
    samples = labels.Partly(*PARTS[part])
    points, classes = zip(*(samples[i] for i in range(len(samples))), strict=True)
    return torch.stack(points), torch.tensor(classes)


UNLABELLED = words("Partly", {"name": "classification", "class_weights": WEIGHTS})


@pytest.mark.usefixtures("this_process_trains")
def test_values_are_those_of_all_labelled_samples(tmp_path: Path) -> None:
    """Of PyTorch, over the whole set; half of the batches of an evaluation have no
    label."""
    run = trained(tmp_path / "run", *UNLABELLED, "trainer.accumulate=2")
    metrics = record.read_summary(run)["metrics"]
    model = Dense(tiny.FEATURES, tiny.CLASSES, 16, 0.0)
    model.load_state_dict(checkpoint.load(run / "checkpoints" / "best.pt")["model"])
    for part in ("validation", "test"):
        points, classes = whole(part)
        assert (classes[:32].view(4, 8) == NONE).all(1).any(), "a negative control"
        outputs = model(points).detach()
        loss = F.cross_entropy(outputs, classes, torch.tensor(WEIGHTS))
        assert metrics[f"{part}_loss"] == pytest.approx(float(loss), rel=1e-6)
        is_right = (outputs.argmax(1) == classes)[classes != NONE]
        assert metrics[f"{part}_accuracy"] == pytest.approx(
            float(is_right.float().mean())
        )


@pytest.mark.long
def test_slices_of_unequal_weights_have_the_same_bits_on_any_number_of_processes(
    tmp_path: Path,
) -> None:
    """The loss that is logged is that of the whole batch: the run in one slice takes
    its steps."""
    slices = (*UNLABELLED, "trainer.shards=4")
    one, two, four = (
        trained_by_command(tmp_path / f"{n}", *slices, f"trainer.processes={n}")
        for n in (1, 2, 4)
    )
    assert differences(one, two) == []
    assert differences(one, four) == []
    plain = trained_by_command(tmp_path / "plain", *UNLABELLED)
    for a, b in zip(*(record.read_metrics(each) for each in (one, plain)), strict=True):
        for name in ("loss", "accuracy"):
            assert float(a[name]) == pytest.approx(
                float(b[name]), rel=1e-5, nan_ok=True
            )


@pytest.mark.usefixtures("this_process_trains")
@pytest.mark.parametrize(
    ("dataset", "task", "outputs"),
    [
        ("Hot", {"name": "multilabel", "pos_weight": [1.0, 2.0, 3.0]}, 3),
        ("Half", {"name": "binary", "pos_weight": 2.0}, 1),
        ("Number", {"name": "quantile", "quantiles": [0.1, 0.9]}, 2),
    ],
)
def test_ready_made_tasks_train(
    dataset: str, task: dict[str, Any], outputs: int, tmp_path: Path
) -> None:
    more = ("optimizer.lr=0.05", "trainer.max_steps=24", "trainer.max_epochs=3")
    run = trained(tmp_path / "run", *words(dataset, task, outputs), *more)
    rows = [row for row in record.read_metrics(run) if row["phase"] == "validation"]
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    assert record.read_summary(run)["status"] == "finished"


@pytest.mark.usefixtures("this_process_trains")
@pytest.mark.parametrize(
    ("dataset", "outputs", "said"),
    [
        (
            "Half",
            1,
            (
                "as a softmax over one is constant, got (16, 1); set data.task={name:"
                " binary}"
            ),
        ),
        (
            "Hot",
            3,
            (
                "expected probabilities that sum to 1 (for several labels per sample,"
                " data.task={name: multilabel}), got a sum of 0 for evaluation sample 1"
            ),
        ),
        (
            "Partly",
            2,
            (
                "expected labels from 0 to 1 (data.outputs=2), or -100 for none, got 2"
                " for evaluation sample 32"
            ),
        ),
    ],
)
def test_what_classification_does_not_take_is_refused(
    dataset: str,
    outputs: int,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = refused(
        tmp_path / "run", capsys, *words(dataset, {"name": "classification"}, outputs)
    )
    assert line.startswith("data.task: expected")
    assert said in line


@pytest.mark.usefixtures("this_process_trains")
def test_a_task_with_two_losses_is_named_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With both values. Negative control: the class that it extends."""
    task = {"name": "doubled", "_target_": "tests.tiny.labels.Doubled"}
    trained(tmp_path / "two", *words("Partly", task))
    assert capsys.readouterr().out.count("warning: data.task: Doubled.loss gives") == 1
    trained(tmp_path / "one", *words("Partly", {"name": "classification"}))
    assert "warning" not in capsys.readouterr().out


class Unlabelled(labels.Partly):
    """The same points, none of which has a label."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return super().__getitem__(index)[0], NONE


def unlabelled(split: str) -> tuple[str, ...]:
    return (*UNLABELLED, f"data.{split}._target_={__name__}.Unlabelled")


@pytest.mark.usefixtures("this_process_trains")
def test_a_validation_set_without_any_label_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        refused(tmp_path, capsys, *unlabelled("validation"))
        == "data.validation: no sample has a label (the weights of all 40 samples"
        " are 0)"
    )


@pytest.mark.usefixtures("this_process_trains")
def test_a_test_set_without_any_label_is_named_in_the_summary(tmp_path: Path) -> None:
    summary = record.read_summary(trained(tmp_path / "run", *unlabelled("test")))
    assert summary["status"] == "finished"
    assert (
        "data.test: no sample has a label: the test has no loss" in summary["warnings"]
    )
