"""Refused operations are named with module, line, pass and a substitute that computes the same."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seedbed import tasks
from seedbed.data.source import Batch
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.operations import refusals
from seedbed.operations.refusals import explained
from seedbed.operations.substitutes import substitute_for
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from tests.fault_score import flags
from tests.refused import BackwardRefused, ForwardRefused


def step(model: nn.Module) -> None:
    model(torch.ones(2, 1, 28, 28)).sum().backward()


def state(model: nn.Module, task: Any, **options: bool) -> TrainingState:
    optimizers = {"optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    return TrainingState(model, optimizers, Supervised(task), torch.device("cpu"), **options)


CASES = [
    (ForwardRefused, "max_unpooling2d_forward_out", "forward", "max_unpool2d(pooled"),
    (BackwardRefused, "put_", "backward", "# the pass whose backward"),
]


def line_of(text: str) -> str:
    lines = open("tests/refused.py").read().splitlines()
    return f"tests/refused.py:{1 + next(i for i, line in enumerate(lines) if text in line)}"


@pytest.mark.parametrize(("kind", "operation", "phase", "code"), CASES)
def test_a_refusal_names_all(kind: type[nn.Module], operation: str, phase: str, code: str) -> None:
    """Whether it happens forward or backward, the user's line is found."""
    model = kind()
    repeated = explained(model, repeat=lambda: step(model))
    with flags(), pytest.raises(InputError) as caught, repeated:
        step(model)
    message = str(caught.value)
    assert message.startswith(f"{operation}: expected an operation with a deterministic")
    assert f"in the {phase} pass in module features.1, " in message
    assert line_of(code) in message
    assert "; use " in message


def test_a_refusal_in_a_closure_is_one_of_the_backward_pass() -> None:
    """Although an optimizer calls it, and notes its end when the stack unwinds."""
    model = BackwardRefused()
    optimizer = torch.optim.LBFGS(model.parameters())

    def closure() -> Any:
        step(model)
        return torch.zeros(())

    take = partial(optimizer.step, closure)
    with flags(), pytest.raises(InputError) as caught, explained(model, repeat=take):
        take()
    assert "in the backward pass in module features.1, " in str(caught.value)


def test_dropout_inside_cudnn_is_refused_with_the_way_out() -> None:
    """Its state cannot be restored, so a resumed run would differ."""
    model = nn.Sequential(nn.LSTM(3, 4, num_layers=2, dropout=0.5))
    with pytest.raises(InputError, match=r"model: expected no dropout inside cuDNN .*nn\.Dropout"):
        refusals.check_recurrent_dropout(model, "cuda")
    # Twins: nothing to refuse on a CPU, without dropout, or with a layer of its own.
    refusals.check_recurrent_dropout(model, "cpu")
    refusals.check_recurrent_dropout(nn.LSTM(3, 4, num_layers=2), "cuda")
    refusals.check_recurrent_dropout(nn.Sequential(nn.LSTM(3, 4), nn.Dropout(0.5)), "cuda")


def test_a_refusal_beside_the_steps_is_named_too() -> None:
    """In an evaluation and in a constructor, where no module has a path; not another error."""
    model = ForwardRefused()
    training = state(model, tasks.Classification(0.0))
    batch = Batch(torch.arange(2), torch.zeros(2, 1, 28, 28), torch.arange(2))
    with flags(), pytest.raises(InputError, match=r"max_unpooling2d.* in the forward pass"):
        evaluate(training, [batch], Shards())
    with flags(), pytest.raises(InputError) as caught, explained():
        model(torch.ones(2, 1, 28, 28))
    assert line_of("max_unpool2d(pooled") in str(caught.value)
    assert " in module " not in str(caught.value)
    with pytest.raises(RuntimeError, match="cannot be multiplied"), explained(model):
        torch.ones(2, 3) @ torch.ones(2, 3)


ADVICE = (
    " does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this "
    "operation, or you can use the 'warn_only=True' option."
)


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def indices(*shape: int, below: int) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(1))


def unpool(x: Tensor, i: Tensor) -> Tensor:
    flat = torch.zeros(2, 3, 64, dtype=x.dtype).scatter(2, i.flatten(2), x.flatten(2))
    return flat.view(2, 3, 8, 8)


IMAGE, LINE = uniform(2, 3, 8, 6), uniform(2, 3, 9)
VALUES, INDEX = uniform(50), indices(50, below=7)
UNPOOLED = F.max_pool2d(uniform(2, 3, 8, 8), 2, return_indices=True)
# What PyTorch calls it: the operation, the recipe, their inputs.
RECIPES = {
    "adaptive_avg_pool2d_backward": (
        lambda x: F.adaptive_avg_pool2d(x, (4, 2)),
        lambda x: F.avg_pool2d(x, (2, 3)),
        (IMAGE,),
    ),
    "max_unpooling2d": (lambda x, i: F.max_unpool2d(x, i, 2), unpool, UNPOOLED),
    "nll_loss2d": (
        lambda x, t: F.cross_entropy(x, t),
        lambda x, t: F.cross_entropy(x.movedim(1, -1).flatten(0, -2), t.flatten()),
        (IMAGE, indices(2, 8, 6, below=3)),
    ),
    "embedding_bag_backward_max": (
        lambda w, i: F.embedding_bag(i, w, mode="max"),
        lambda w, i: F.embedding(i, w).max(dim=1).values,
        (uniform(7, 5), indices(4, 3, below=7)),
    ),
    "bincount": (
        lambda i, w: i.bincount(w.detach(), minlength=7),
        lambda i, w: torch.zeros(7, dtype=w.dtype).index_add(0, i, w),
        (INDEX, VALUES),
    ),
    "median": (
        lambda x: x.median(2).values,
        lambda x: x.sort(dim=2, stable=True)[0][..., (9 - 1) // 2],
        (LINE,),
    ),
    "put_": (
        lambda x, s: x.clone().put_(torch.tensor([3, 8]), s),
        lambda x, s: x.flatten().index_put((torch.tensor([3, 8]),), s).view(x.shape),
        (LINE, uniform(2)),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_substitute_computes_the_same(name: str) -> None:
    """Values and gradients of a recipe are those of the operation, to rounding."""
    operation, recipe, inputs = RECIPES[name]
    assert substitute_for(name + ADVICE) is not None
    expected, actual = values_and_gradients(operation, inputs), values_and_gradients(recipe, inputs)
    # Some recipes have gradients that the operation does not have.
    torch.testing.assert_close(actual[: len(expected)], expected)


def values_and_gradients(function, inputs: tuple[Tensor, ...]) -> list[Tensor]:
    """Return what a function of the inputs gives, and the gradients of its sum of squares."""
    copies = [t.clone().requires_grad_(t.is_floating_point()) for t in inputs]
    out = function(*copies)
    if not out.requires_grad:
        return [out]
    floats = [t for t in copies if t.is_floating_point()]
    gradients = torch.autograd.grad(out.square().sum(), floats, allow_unused=True)
    return [out.detach(), *(g for g in gradients if g is not None)]
