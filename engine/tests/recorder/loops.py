"""A small loop of one's own, with faults to plant in it."""

import copy
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


class Loop:
    """What a loop holds; a fault changes something of it."""

    def __init__(self, seed: int = 0, workers: int = 0) -> None:
        self.loader = seeded_loader(Noisy(SAMPLES), BATCH, seed, workers)
        rng.seed_globals(rng.key(seed, "init"))
        self.model = nn.Sequential(Convolution(3, 4), nn.Dropout(0.5), nn.Linear(3, 3))
        self.model(torch.zeros(2, 8))  # shapes of lazy modules
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint of people's holds."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(state)

    def restore(self, state: dict[str, Any], step: int) -> None:
        """Go on after a step."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loader.seek(step)

    def run(
        self,
        recorder: Recorder,
        first: int = 1,
        last: int = STEPS,
        fault: Callable[["Loop", int, dict[str, Any]], None] | None = None,
    ) -> None:
        """Train some steps; `fault` may change the parts of a step before they are recorded."""
        step = first
        while step <= last:
            for points, labels in self.loader:
                self.optimizer.zero_grad()
                loss: Tensor = nn.functional.cross_entropy(self.model(points), labels)
                loss.backward()
                self.optimizer.step()
                made = {"ids": self.loader.ids(step), "batch": (points, labels), "losses": loss}
                if fault is not None:
                    fault(self, step, made)
                recorder.step(step, **made, model=self.model, optimizers=self.optimizer)
                step += 1
                if step > last:
                    break


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
