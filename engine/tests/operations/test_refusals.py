"""Refused operations are named with module, line, pass and what to do."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import operations, tasks
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.operations import explained
from seedbed.pipeline.source import Batch
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from tests.fault_score import flags


class Unpool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pooled, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        return nn.functional.max_unpool2d(pooled, indices, 2)  # refused in forward


class _RefusedBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        return x.clone()  # the pass whose backward pass is refused

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:  # type: ignore[no-untyped-def, override]
        index = torch.arange(gradient.numel())
        return gradient.clone().put_(index, gradient.flatten())


class PutInBackward(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _RefusedBackward.apply(x)  # refused in backward


def forward_refused() -> nn.Module:
    inner = nn.Sequential(nn.Identity(), Unpool())
    return nn.Sequential(inner, nn.Flatten(), nn.Linear(784, 10))


def backward_refused() -> nn.Module:
    inner = nn.Sequential(nn.Conv2d(1, 1, 1), PutInBackward(), nn.Tanh())
    return nn.Sequential(inner, nn.Flatten(), nn.Linear(784, 10))


def step(model: nn.Module) -> None:
    model(torch.ones(2, 1, 28, 28)).sum().backward()


CASES = [
    (forward_refused, "max_unpooling2d_forward_out", "forward", "max_unpool2d(pooled"),
    (backward_refused, "put_", "backward", "# the pass whose backward"),
]


def line_of(text: str) -> str:
    lines = Path(__file__).read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if text in line)
    return f"tests/operations/test_refusals.py:{number}"


@pytest.mark.parametrize(("kind", "operation", "phase", "code"), CASES)
def test_a_refusal_names_all(
    kind: Callable[[], nn.Module], operation: str, phase: str, code: str
) -> None:
    """The error names pass, module, the user's line and what to do, for both passes."""
    model = kind()
    repeated = explained(model, repeat=lambda: step(model))
    with flags(replace=False), pytest.raises(InputError) as caught, repeated:
        step(model)
    message = str(caught.value)
    assert message.startswith(
        f"{operation}: expected an operation with a deterministic"
    )
    assert f"in the {phase} pass in module 0.1, " in message
    assert line_of(code) in message
    assert "; docs/replaced.md has what determinism.replace=true replaces" in message


def test_a_refusal_in_a_closure_is_one_of_the_backward_pass() -> None:
    """The optimizer, which calls it and runs operations as the stack unwinds, is not
    blamed."""
    model = backward_refused()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> Any:
        step(model)
        return torch.zeros(())

    take = partial(optimizer.step, closure)
    with (
        flags(replace=False),
        pytest.raises(InputError) as caught,
        explained(model, repeat=take),
    ):
        take()
    assert "in the backward pass in module 0.1, " in str(caught.value)


def test_dropout_inside_cudnn_is_refused_with_the_way_out() -> None:
    """Its state cannot be restored, so a resumed run would differ."""
    model = nn.Sequential(nn.LSTM(3, 4, num_layers=2, dropout=0.5))
    with pytest.raises(
        InputError, match=r"model: expected no dropout inside cuDNN .*nn\.Dropout"
    ):
        operations.check_recurrent_dropout(model, "cuda")
    # Negative controls: a CPU, no dropout, and dropout as a separate layer.
    operations.check_recurrent_dropout(model, "cpu")
    operations.check_recurrent_dropout(nn.LSTM(3, 4, num_layers=2), "cuda")
    operations.check_recurrent_dropout(
        nn.Sequential(nn.LSTM(3, 4), nn.Dropout(0.5)), "cuda"
    )


def test_a_refusal_beside_the_steps_is_named_too() -> None:
    """Evaluations and constructors (without a module) name it. Negative control:
    another error."""
    model = forward_refused()
    method = Supervised(tasks.Classification(0.0))
    training = TrainingState(model, {}, method, torch.device("cpu"))
    batch = Batch(torch.arange(2), torch.zeros(2, 1, 28, 28), torch.arange(2))
    with (
        flags(replace=False),
        pytest.raises(InputError, match=r"max_unpooling2d.* in the forward pass"),
    ):
        evaluate(training, [batch], Shards())
    with flags(replace=False), pytest.raises(InputError) as caught, explained():
        model(torch.ones(2, 1, 28, 28))
    assert line_of("max_unpool2d(pooled") in str(caught.value)
    assert " in module " not in str(caught.value)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), explained(model):
        torch.ones(2, 3) @ torch.ones(2, 3)
