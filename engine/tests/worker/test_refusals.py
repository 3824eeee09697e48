"""What only the training process can know is refused in one line, where it can before a step."""

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import IterableDataset

from seedbed import record
from seedbed.data.source import Batch
from seedbed.methods import Callback, Make, Supervised
from tests import tiny
from tests.running import QUICK
from tests.tiny.methods import VAE
from tests.worker.runs import METHODS, begun, of_method, refused, work

pytestmark = pytest.mark.usefixtures("this_process_trains")
PLAIN = of_method("Supervised", module="seedbed.methods")
AUTOENCODER = {"name": "own", "_target_": f"{METHODS}.Autoencoder"}


class Broken(VAE):
    """Evaluates by code that was never run."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return {"loss": model.decode(batch.inputs)}


class LateHead(Supervised):
    """Trains a part from step 10 on, whose name is misspelt."""

    def trainable(self, step: int) -> list[str]:
        return ["*"] if step < 10 else ["*", "haed.*"]


class Partial(Supervised):
    """Gives its optimizer biases, and a part that is not there."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> torch.optim.Optimizer:
        named = dict(model.named_parameters())
        biases = [p for name, p in named.items() if name.endswith("bias")]
        head = [p for name, p in named.items() if name.startswith("fcc.")]
        return make([{"params": biases, "name": "biases"}, {"params": head, "name": "head"}])


class Naming(Supervised):
    """Logs by the name of a column of metrics.csv."""

    def training_step(self, model: nn.Module, batch: Any, optimizer: str) -> Any:
        return {"loss": model(batch.inputs).square().mean(), "step": 1.0}


class Elsewhere(Supervised):
    """Trains a parameter that no checkpoint holds."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> Any:
        return torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)


class Pupil(Supervised):
    """Evaluates a teacher beside the model: no loss and no gradient ever shows it."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> Any:
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        return make(model.named_parameters())

    def on_step_end(self, model: nn.Module, step: int) -> None:
        for average, weight in zip(self.teacher.parameters(), model.parameters(), strict=True):
            average.lerp_(weight, 0.1)

    def validation_step(self, model: nn.Module, batch: Any) -> Any:
        return super().validation_step(self.teacher, batch)


class Swapping(Supervised):
    """Puts a layer into the model later, whose parameters are none of the optimizer's."""

    def on_step_end(self, model: Any, step: int) -> None:
        if step == 5:
            model[3] = nn.Linear(16, 3)


class Stream(IterableDataset[Any]):
    """Begins elsewhere at each reading, as WebDataset does that shuffles without a seed."""

    readings = itertools.count()

    def __init__(self, samples: int, moves: int) -> None:
        self.samples, self.moves = samples, moves

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        first = self.moves * next(self.readings)
        for number in range(first, first + self.samples):
            yield torch.randn(tiny.FEATURES) + number % self.samples, number % tiny.CLASSES


class LateHook(Callback):
    """Has a hook of another library."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise AssertionError


def own(method: str, *words: str) -> tuple[str, ...]:
    """Return a command line that trains by a method of this file."""
    model = AUTOENCODER if method == "Broken" else None
    return of_method(method, *words, module=__name__, model=model)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*PLAIN, "objective=test_f1"), "objective: expected one of validation_loss, validation_a"),
        ((*PLAIN, "trainer.monitor=f1"),
         "trainer.monitor: expected a value of Supervised.validation_step, got validation_f1"),
        (of_method("VAE", "trainer.monitor=kl"),
         "trainer.mode: expected min or max, since nothing says which kl is better, got null"),
        ((*PLAIN, "+callbacks.own={_target_:torch.nn.Identity}"),
         "callbacks.own: expected a class that extends"),
        ((*PLAIN, f"+callbacks.late._target_={__name__}.LateHook"),
         "callbacks.late: expected hooks among on_before_optimizer_step, on_step_end, "
         "on_validation_end, on_evaluation_end, got LateHook.on_validation_epoch_end, which is"),
        (of_method("Linear", module="torch.nn"), "method: expected"),
        (own("LateHead"), "method: expected patterns that parameters fit from trainable"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_before_the_first_step(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that nothing has, arguments that a class does not take, a part that is not there."""
    assert refused(tmp_path / "run", capsys, *words).startswith(line)
    assert record.read_summary(tmp_path / "run").get("steps", 0) == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*PLAIN, "~schedule", f"+schedule={{name:own,_target_:{METHODS}.Impure}}"),
         "schedule: expected the same learning rate in step 2"),
        (own("Pupil"), "model: expected the same evaluation in step 2"),
        (own("Swapping"), "model: expected the parameters that its"),
        (own("Naming"), "method: expected names other than step, epoch"),
        (own("Elsewhere"), "method: expected parameters of the model in step 1"),
    ],
)  # fmt: skip
def test_what_a_step_shows_is_refused(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """State that no checkpoint keeps, parameters of no optimizer, names of values."""
    assert refused(tmp_path / "run", capsys, *words).startswith(line)


def test_a_stream_in_another_order_when_it_is_read_again_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rehearsal of a resume reads another batch; negative control: the same order."""
    stream = f"++data.train={{_target_:{__name__}.Stream,samples:96,moves:"
    words = (*QUICK, *tiny.OVERRIDES, "+data.streams=1")
    assert work(begun(tmp_path / "pure", *words, f"{stream}0}}")) == 0
    assert refused(tmp_path / "run", capsys, *words, f"{stream}1}}").startswith("data.train: exp")


def test_a_broken_evaluation_fails_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Python's traceback, from the user's line on."""
    assert work(begun(tmp_path / "run", *own("Broken", "data.num_workers=1"))) == 1
    assert record.read_metrics(tmp_path / "run") == []
    error = capsys.readouterr().err
    assert "model.decode(batch.inputs)" in error
    assert "has no attribute 'decode'" in error


def test_what_is_never_trained_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And trained all the same, since it may be meant; negative control: all are."""
    assert work(begun(tmp_path / "run", *own("Partial"))) == 0
    printed = capsys.readouterr().out
    assert "warning: optimizer: 2 of 4 parameters that need gradients are in no opt" in printed
    assert "warning: optimizer: its parameter group head is empty" in printed
    assert work(begun(tmp_path / "all", *of_method("FineTuning"))) == 0
    assert "warning" not in capsys.readouterr().out
