"""AdamW without weight decay of vectors, and with gradients that are scaled."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class Adam(torch.optim.AdamW):
    """AdamW in two groups of parameters."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float = 0.01) -> None:
        params = list(params)
        groups = [
            {"params": [p for p in params if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in params if p.dim() <= 1], "weight_decay": 0.0},
        ]
        super().__init__(groups, lr=lr, betas=(0.9, 0.99), eps=1e-8)

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.clamp_(-0.5, 0.5)
        return super().step(closure)


def unused(rate: float) -> float:
    return rate + 1
