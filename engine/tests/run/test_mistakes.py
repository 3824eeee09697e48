"""Mistakes of a first data set, model or method: one line with the key, and what to
do."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, get_worker_info

from seedbed import record
from seedbed.methods import Supervised
from seedbed.pipeline.source import Batch
from tests import tiny
from tests.run.runs import SHORT, begun, of_method, refused, work


class Points(Dataset[Any]):
    """Points with a mistake."""

    def __init__(self, mistake: str, samples: int, statistics: Any = None) -> None:
        self.mistake = mistake
        self.samples = samples
        self.lock = threading.Lock() if mistake == "lock" else None

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        point = torch.randn(tiny.FEATURES)
        label = index % tiny.CLASSES
        if self.mistake == "killed" and get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        if self.mistake == "exits" and index == 5:
            sys.exit(0)
        if self.mistake == "shapes" and index == 5:
            return point[1:], label
        if self.mistake == "range" and index == 5:
            return point, 7
        if self.mistake == "texts":
            return point, ["cat", "dog", "cow"][label]
        if self.mistake == "no return":
            return None
        if self.mistake == "no target":
            return point, None if index == 5 else label
        if self.mistake == "input alone":
            return point
        if self.mistake == "float64":
            return point.double(), label
        if self.mistake == "array":
            return point.double().numpy(), label
        if self.mistake == "uint8":
            return point.byte(), label
        if self.mistake == "dtype":
            return point, torch.tensor(label, dtype=torch.int16)
        return point, label


class Net(nn.Sequential):
    """A model with a mistake."""

    def __init__(self, mistake: str, outputs: int) -> None:
        width = tiny.FEATURES - 1 if mistake == "width" else tiny.FEATURES
        super().__init__(nn.Linear(width, outputs))
        self.mistake = mistake

    def forward(self, x: Tensor) -> Any:
        outputs = super().forward(x)
        if self.mistake == "detach":
            return outputs.detach()
        if self.mistake == "mean":
            return outputs.mean(0)
        if self.mistake == "scalar":
            return outputs.mean()
        if self.mistake == "argmax":
            return outputs.argmax(1)
        return None if self.mistake == "no return" else outputs


class NoReturn(Supervised):
    """Forgets the return of its training step."""

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        self.task.loss(model(batch.inputs), batch.targets)


class NoValues(Supervised):
    """Forgets the return of its validation step."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        self.task.losses(model(batch.inputs), batch.targets)


class Listing(Supervised):
    """Returns a list of values without names."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return list(super().validation_step(model, batch).values())


class NoSummary(Supervised):
    """Forgets the return of its compute."""

    def compute(self, values: Any) -> Any:
        super().compute(values)


class Means(Supervised):
    """Returns the mean over the batch from its validation step."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return {"loss": self.task.loss(model(batch.inputs), batch.targets)}


def mean(dataset: Any) -> Any:
    """Fit statistics."""
    return {"mean": float(dataset[0][0].mean())}


def of_data(mistake: str, **others: Any) -> tuple[str, ...]:
    spec: dict[str, Any] = {
        "_target_": f"{__name__}.Points",
        "mistake": mistake,
        "samples": 24,
    }
    spec["statistics"] = None
    splits = dict.fromkeys(("train", "validation", "test"), spec)
    return (
        *SHORT,
        *tiny.overrides(tiny.DENSE, {**tiny.DATA, "outputs": 3, **splits, **others}),
    )


def of_model(mistake: str, **others: Any) -> tuple[str, ...]:
    spec = {
        "name": "net",
        "_target_": f"{__name__}.Net",
        "outputs": 3,
        "mistake": mistake,
    }
    return (*SHORT, *tiny.overrides(spec, {**tiny.DATA, **others}))


WORKER = ("data.num_workers=1", "trainer.rehearse_resume=false")


@pytest.mark.usefixtures("this_process_trains")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            of_data("range"),
            ("data.task: ", "(data.outputs=3)", "got 7 for evaluation sample 5"),
        ),
        (
            of_data("texts"),
            ("data.task: ", "got a tuple of str", "labels to class numbers"),
        ),
        (
            of_data("dtype"),
            ("data.task: ", "got int16 (16,)", "convert them in the data set"),
        ),
        (
            of_data("shapes"),
            ("data.validation: ", "[7] in sample 5", "name it in data.collate"),
        ),
        (
            (*of_data("shapes"), *WORKER),
            ("data.validation: ", "[7] in sample 5", "data.collate"),
        ),
        (
            (*of_data("lock"), *WORKER, "data.start_method=spawn"),
            (
                "data.validation: ",
                "Points.lock with TypeError",
                "set data.start_method=fork",
            ),
        ),
        (
            of_data("no return"),
            (
                "data.validation: ",
                "__getitem__ of Points, got None for sample 0; end it with a return",
            ),
        ),
        (
            of_data("no return", statistics={"_target_": f"{__name__}.mean"}),
            (
                "data.train: ",
                "__getitem__ of Points, got None for sample 0; end it with a return",
            ),
        ),
        (
            of_data("no target"),
            ("data.validation: ", "got None for sample 5; return -100 as the label"),
        ),
        (
            of_data("input alone"),
            ("data.validation: ", "got Tensor of 16", "`return x, y`"),
        ),
        (
            of_data("float64"),
            ("data.train: ", "float32, got float64 (16, 8)", "module 0", ".float()"),
        ),
        (
            of_data("array"),
            ("data.train: ", "got float64 (16, 8)", ".astype(np.float32)"),
        ),
        (of_data("uint8"), ("data.train: ", "float32, got uint8 (16, 8)")),
        (
            of_model("width"),
            (
                "model: ",
                "Linear(in_features=7, out_features=3, bias=True)",
                "got (16, 8) in the forward pass in module 0, ",
                "test_mistakes.py:",
                "the size of the samples",
            ),
        ),
        (
            of_model("no return"),
            ("model: ", "forward of Net, got None", "with a return"),
        ),
        (
            of_model("mean"),
            ("model: ", "each of 16 samples", "got (3,)", "look for mean(0)"),
        ),
        (of_model("scalar"), ("model: ", "each of 16 samples", "got ()")),
        (
            of_model("mean", task={"name": "regression"}),
            ("model: ", "each of 16 samples", "got (3,)"),
        ),
        (
            of_model("argmax"),
            ("model: ", "(16, C)", "got one number for each of 16", "without argmax"),
        ),
        (of_model("detach"), ("method: ", "without a gradient", "look for detach()")),
        (
            of_method("NoReturn", module=__name__),
            (
                "method: ",
                "NoReturn.training_step",
                "got NoneType; end it with a return",
            ),
        ),
        (
            of_method("NoValues", module=__name__),
            (
                "method: ",
                "NoValues.validation_step",
                "got NoneType; end it with a return",
            ),
        ),
        (
            of_method("Listing", module=__name__),
            ("method: ", "Listing.validation_step", "got list; return {name: value}"),
        ),
        (
            of_method("NoSummary", module=__name__),
            ("method: ", "NoSummary.compute", "got NoneType; end it with a return"),
        ),
        (
            of_method("Means", module=__name__),
            ("method: ", "return loss of each sample, not their mean"),
        ),
    ],
)
def test_a_mistake_is_explained_in_one_line(
    words: tuple[str, ...],
    expected: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With its key first, and what to do."""
    line = refused(tmp_path / "run", capsys, *words)
    assert line.startswith(expected[0]), line
    for part in expected:
        assert part in line, line


@pytest.mark.usefixtures("this_process_trains")
def test_code_that_calls_exit_fails_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a traceback to its line: `python train.py && ...` would go on."""
    alone = ("trainer.rehearse_resume=false", "data.compare_splits=false")
    assert work(begun(tmp_path / "run", *of_data("exits"), *alone)) == 1
    errors = capsys.readouterr().err
    assert "sys.exit(0)" in errors
    assert "SystemExit: 0" in errors
    assert record.read_summary(tmp_path / "run")["status"] == "failed"


@pytest.mark.usefixtures("this_process_trains")
def test_a_killed_loader_worker_is_explained_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1: the request was valid."""
    assert work(begun(tmp_path / "run", *of_data("killed"), *WORKER)) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "error: data.num_workers: expected loader workers that live as long as"
    )
    for part in ("got one that was killed by SIGKILL", "; lower data.num_workers"):
        assert part in line
