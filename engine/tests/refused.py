"""Models with operations that deterministic algorithms refuse on a CPU."""

import torch
from torch import Tensor, nn


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
