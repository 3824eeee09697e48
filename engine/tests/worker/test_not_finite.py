"""A loss that is not finite: data, first forward pass and training are told apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import record
from tests.tiny.data import Noisy
from tests.tiny.models import Dense
from tests.worker.runs import begun, of_method, work

pytestmark = pytest.mark.usefixtures("this_process_trains")


class Holed(Noisy):
    """Lacks a value of one sample."""

    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        if index == 5:
            point[3] = torch.nan
        return point, label


class Root(nn.Module):
    """Takes a root of negative numbers, too."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Rooted(nn.Module):
    """Has a part whose outputs are not finite: always, or in evaluation."""

    def __init__(self, in_evaluation: bool = False, **options: Any) -> None:
        super().__init__()
        self.root, self.net, self.in_evaluation = Root(), Dense(**options), in_evaluation

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x if self.in_evaluation and self.training else self.root(x))


def message(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    chosen = of_method("Supervised", "trainer.max_steps=7", *words, module="seedbed.methods")
    assert work(begun(folder, *chosen)) == 2
    line = capsys.readouterr().err.removeprefix("error: ").rstrip("\n")
    assert record.read_summary(folder)["error"] == line
    return line


@pytest.mark.parametrize(("often", "workers"), [(1, 0), (7, 2)])
def test_samples_that_are_not_finite_are_named(
    often: int, workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In whatever step they come, and whenever the loss is looked at."""
    words = (f"trainer.log_every_steps={often}", f"data.num_workers={workers}")
    for split, where in (("train", "step "), ("validation", "the validation after step ")):
        chosen = f"data.{split}._target_={__name__}.Holed"
        found = message(tmp_path / split, capsys, *words, chosen)
        expected = (
            f"data.{split}: expected finite inputs, got nan in column 3 of sample 5, in {where}"
        )
        assert found.startswith(expected), found
        assert "optimizer.lr" not in found


def test_the_first_module_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before any update, whenever the loss is looked at; in evaluation likewise."""
    model = (f"model._target_={__name__}.Rooted", "trainer.log_every_steps=7")
    found = message(tmp_path / "training", capsys, *model)
    assert found.startswith("model.root: expected finite outputs of Root, got nan in the first for")
    assert "before any update" in found
    assert "its weights" not in found
    found = message(tmp_path / "evaluation", capsys, *model, "+model.in_evaluation=true")
    assert found.startswith(
        "model.root: expected finite outputs of Root, got nan in the validation"
    )


def test_training_is_to_blame_where_nothing_else_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative control: the same run with a usual learning rate finishes."""
    rate = ("~optimizer", "+optimizer={name:sgd,_target_:torch.optim.SGD,lr:1e20}")
    found = message(tmp_path / "run", capsys, *rate)
    assert found.startswith("loss: expected a finite number, got ")
    assert "updates; lower optimizer.lr" in found or "update; lower optimizer.lr" in found
    usual = (rate[0], rate[1].replace("1e20", "0.1"), "trainer.max_steps=7")
    chosen = of_method("Supervised", *usual, module="seedbed.methods")
    assert work(begun(tmp_path / "usual", *chosen)) == 0


def test_weights_that_are_not_finite_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last step's loss is finite and its update is not: the run has not finished."""
    rate = ("optimizer=sgd", "optimizer.lr=1e300")
    one = ("trainer.max_steps=1", "trainer.gradient_clip_norm=null")
    found = message(tmp_path / "run", capsys, *rate, *one)
    assert found.startswith("validation loss: expected a finite number, got ")
    assert list((tmp_path / "run" / "checkpoints").glob("*.pt")) == []
