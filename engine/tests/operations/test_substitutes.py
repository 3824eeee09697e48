"""Every refusal that PyTorch words has a way out, and the way out computes the same."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seedbed.operations.substitutes import substitute_for

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
