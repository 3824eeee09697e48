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


class ForwardRefused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Identity(), Unpool())
        self.head = nn.Linear(784, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).flatten(1))


class BackwardRefused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(784, 20)
        self.features = nn.Sequential(nn.ReLU(), PutInBackward(), nn.Tanh())
        self.head = nn.Linear(20, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(self.embed(x.flatten(1))))
