"""A small loop of one's own, with faults to plant in it."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import rng
from seedbed.loading import seeded_loader
from seedbed.recorder import Recorder
from tests.tiny.data import Noisy
from tests.tiny.models import Convolution

STEPS, SAMPLES, BATCH = 8, 48, 8
Fault = Callable[["Loop", int, dict[str, Any]], None]


class Loop:
    """What a loop holds; a fault changes something of it."""

    def __init__(self, seed: int = 0, workers: int = 0) -> None:
        self.loader = seeded_loader(Noisy(SAMPLES), BATCH, seed, workers)
        rng.seed_globals(rng.key(seed, "init"))
        self.model = nn.Sequential(Convolution(3, 4), nn.Dropout(0.5), nn.Linear(3, 3))
        self.model(torch.zeros(2, 8))  # shapes of lazy modules
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def run(self, recorder: Recorder, fault: Fault | None = None) -> None:
        """Train some steps; `fault` may change the parts of a step before they are recorded."""
        batches = itertools.chain.from_iterable(itertools.repeat(self.loader))
        for step, (points, labels) in enumerate(itertools.islice(batches, STEPS), 1):
            self.optimizer.zero_grad()
            loss: Tensor = nn.functional.cross_entropy(self.model(points), labels)
            loss.backward()
            self.optimizer.step()
            made = {"ids": self.loader.ids(step), "batch": (points, labels), "losses": loss}
            if fault is not None:
                fault(self, step, made)
            recorder.step(step, **made, model=self.model, optimizers=self.optimizer)


def recorded(
    folder: Path, settings: object = None, seed: int = 0, fault: Any = None, **options: Any
) -> Path:
    """Record a whole loop; return its folder."""
    settings = {"seed": seed, "lr": 0.01} if settings is None else settings
    loop = Loop(seed)
    with Recorder(folder, settings, **options) as recorder:
        loop.run(recorder, fault=fault)
        recorder.validation(STEPS, loss=0.5 + seed, accuracy=torch.tensor(0.75 + seed / 100))
    return folder
