"""A model as transformers has them, for several processes, and a method that can kill
one."""

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn

from seedbed.methods import Supervised
from seedbed.pipeline.source import Batch
from tests.tiny import CLASSES, FEATURES

# not a multiple of four, as CLASSES: ranks have shards of other sizes, and empty ones
WIDTH = 10
# passes of training
KILLED_RANK = "TINY_KILLED_RANK"
KILLED_AFTER = "TINY_KILLED_AFTER"


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.mix(self.norm(x)).tanh()
        return x + self.dropout(mixed)


class Model(nn.Module):
    """Repeated blocks, tied weights, frozen ones, one that nothing and one that few
    slices use."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.first = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, WIDTH, bias=False)
        self.last.weight = self.first.weight
        self.frozen = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.rare = nn.Parameter(torch.ones(WIDTH))
        self.pooler = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, points: Tensor) -> dict[str, Tensor]:
        x = self.first(self.embed(points))
        for block in self.blocks:
            x = block(x)
        x = self.frozen(self.last(x))
        if points[0, 0] > 0:
            x = x * self.rare
        return {"logits": self.head(x), "hidden": x}


class Weighted(Supervised):
    """Slices have weights, one of them none; the embedding is trained from step 3
    on."""

    def __init__(self) -> None:
        super().__init__(output="logits")
        self._passes = 0

    def trainable(self, step: int) -> list[str] | None:
        return ["[!e]*"] if step < 3 else None

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        self._passes += 1
        is_meant = os.environ.get("RANK", "0") == os.environ.get(KILLED_RANK)
        if is_meant and self._passes == int(os.environ[KILLED_AFTER]):
            os.kill(os.getpid(), signal.SIGKILL)
        values = dict(super().training_step(model, batch, optimizer))  # type: ignore[call-overload]
        weight = int(batch.ids[0]) % 5
        return {
            **values,
            "loss": values["loss"] * (1 if weight else float("nan")),
            "weight": weight,
        }
