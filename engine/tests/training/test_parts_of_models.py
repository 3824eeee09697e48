"""Models that return more than a task takes, and parts that are not trained."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed.data.source import Batch
from seedbed.methods import Supervised
from seedbed.tasks import Classification

BATCH = Batch(torch.arange(4), torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))


class Returns(nn.Module):
    """A linear layer whose answer is wrapped."""

    def __init__(self, wrap: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.wrap = nn.Linear(3, 2), wrap

    def forward(self, inputs: Tensor) -> Any:
        return self.wrap(self.layer(inputs))


def loss(wrap: Any, output: str | int | None) -> Tensor:
    method = Supervised(Classification(), output)
    found = method.training_step(Returns(wrap), BATCH, "optimizer")
    assert isinstance(found, dict)
    kept = method.validation_step(Returns(wrap), BATCH)
    assert torch.equal(kept["loss"].mean(), found["loss"])
    return found["loss"]


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda logits: SimpleNamespace(logits=logits), "logits"),
        (lambda logits: {"logits": logits, "items": 0}, "logits"),
        (lambda logits: (None, logits), 1),
    ],
)
def test_the_task_takes_the_part_that_is_named(wrap: Any, output: str | int) -> None:
    """An attribute, an entry or a place; the loss is that of the plain output."""
    assert torch.equal(loss(wrap, output), loss(lambda logits: logits, None))
