"""What only the training process can know is refused in one line, where it can before a step."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import record
from seedbed.data.source import Batch
from seedbed.methods import Callback, Make, Supervised
from tests import tiny
from tests.tiny.data import Noisy
from tests.tiny.models import Dense
from tests.worker.runs import METHODS, begun, of_method, refused, work

pytestmark = pytest.mark.usefixtures("this_process_trains")
PLAIN = of_method("Supervised", module="seedbed.methods")


class Forward(Dense):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + missing  # type: ignore[name-defined]  # noqa: F821


class Samples(Noisy):
    def __getitem__(self, index: int) -> Any:
        return {}["nothing"]


class Broken(Supervised):
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


class LateHook(Callback):
    """Has a hook of another library."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise AssertionError


def own(method: str, *words: str) -> tuple[str, ...]:
    """Return a command line that trains by a method of this file."""
    return of_method(method, *words, module=__name__)


@pytest.mark.parametrize(
    ("words", "steps", "line"),
    [
        ((*PLAIN, "objective=test_f1"), 0, "objective: expected one of validation_loss, valid"),
        ((*PLAIN, "trainer.monitor=f1"), 0,
         "trainer.monitor: expected a value of Supervised.validation_step, got validation_f1"),
        (of_method("VAE", "trainer.monitor=kl"), 0,
         "trainer.mode: expected min or max, since nothing says which kl is better, got null"),
        ((*PLAIN, "+callbacks.own={_target_:torch.nn.Identity}"), 0,
         "callbacks.own: expected a class that extends"),
        ((*PLAIN, f"+callbacks.late._target_={__name__}.LateHook"), 0,
         "callbacks.late: expected hooks among on_before_optimizer_step, on_step_end, "
         "on_validation_end, on_evaluation_end, got LateHook.on_validation_epoch_end, which is"),
        (of_method("Linear", module="torch.nn"), 0, "method: expected"),
        (own("LateHead"), 0, "method: expected patterns that parameters fit from trainable"),
        (own("Naming"), 0, "method: expected names other than step, epoch"),
        (own("Elsewhere"), 0, "method: expected parameters of the model in step 1"),
        ((*PLAIN, *tiny.replaced("schedule", f"{METHODS}.Impure")), 1,
         "schedule: expected the same learning rate in step 2"),
        (own("Pupil"), 1, "model: expected the same evaluation in step 2"),
        (own("Swapping"), 6, "model: expected the parameters that its"),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_as_soon_as_it_shows(
    words: tuple[str, ...], steps: int, line: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Names that nothing has, parameters of no optimizer, state that no checkpoint keeps."""
    assert refused(tmp_path / "run", capsys, *words).startswith(line)
    assert record.read_summary(tmp_path / "run").get("steps", 0) == steps


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*PLAIN, f"model._target_={__name__}.Forward"), "return super().forward(x) + missing"),
        ((*PLAIN, f"data.train._target_={__name__}.Samples", "data.num_workers=1"),
         'return {}["nothing"]'),
        (own("Broken"), "model.decode(batch.inputs)"),
    ],
)  # fmt: skip
def test_an_error_in_a_users_code_ends_in_its_traceback(
    words: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1, a record that says failed; also one in an evaluation, before the first step."""
    assert work(begun(tmp_path / "run", *words)) == 1
    summary, error = record.read_summary(tmp_path / "run"), capsys.readouterr().err
    assert summary["status"] == "failed"
    assert code in error
    assert summary["error"] in error
    assert code in (tmp_path / "run" / "train.log").read_text()
    assert record.read_metrics(tmp_path / "run") == []


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
