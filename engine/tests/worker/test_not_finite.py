"""A loss that is not finite: data, first forward pass and training are told apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed.training import checkpoint
from tests import tiny
from tests.tiny.data import Noisy
from tests.tiny.models import Dense
from tests.worker.runs import begun, of_method, refused, work

pytestmark = pytest.mark.usefixtures("this_process_trains")
PLAIN = of_method("Supervised", "trainer.max_steps=7", module="seedbed.methods")


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


HOLED = f"_target_={__name__}.Holed"
ROOTED = f"model._target_={__name__}.Rooted"
BIG, USUAL = (tiny.replaced("optimizer", "torch.optim.SGD", lr=lr) for lr in (1e20, 0.1))
PLACES = {"train": "step ", "validation": "the validation after step "}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        *(
            ((f"data.{split}.{HOLED}", f"trainer.log_every_steps={often}", f"data.num_workers={n}"),
             f"data.{split}: expected finite inputs, got nan in column 3 of sample 5, in {where}")
            for split, where in PLACES.items()
            for often, n in ((1, 0), (7, 2))
        ),
        ((ROOTED, "trainer.log_every_steps=7"),
         "model.root: expected finite outputs of Root, got nan in the first forward pass"),
        ((ROOTED, "+model.in_evaluation=true"),
         "model.root: expected finite outputs of Root, got nan in the validation"),
        (BIG, "loss: expected a finite number, got "),
        # The only step's loss is finite and its update is not: the run has not finished.
        (("optimizer=sgd", "optimizer.lr=1e300", "trainer.max_steps=1",
          "trainer.gradient_clip_norm=null"), "validation loss: expected a finite number, got "),
    ],
)  # fmt: skip
def test_what_is_to_blame_is_named_and_no_such_weights_are_kept(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples, whoever loads them and whenever the loss is looked at, a module, or training."""
    found = refused(tmp_path, capsys, *PLAIN, *words)
    assert found.startswith(line)
    assert ("lower optimizer.lr" in found) == ("loss" in line)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        assert all(each.isfinite().all() for each in checkpoint.load(path)["model"].values())


def test_a_usual_learning_rate_is_not_to_blame(tmp_path: Path) -> None:
    """Negative control."""
    assert work(begun(tmp_path / "usual", *PLAIN, *USUAL)) == 0
