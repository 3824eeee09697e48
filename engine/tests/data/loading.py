"""Helpers of the loading tests: a preset, data sets, batches, fingerprints,
settings."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from seedbed import fingerprint, rng
from seedbed.config import Settings
from seedbed.pipeline.positions import Order, positions
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.tensors import tensors_of
from seedbed.pipeline.workers import Loading, load
from tests.running import typed
from tests.tiny.data import Noisy

# With this preset, loader workers need not import the compiler, which takes seconds.
PRESET: dict[str, Any] = {
    "on_nondeterministic": "allow",
    "fill_uninitialized_memory": False,
}


class Fetched:
    """A data set that loads whole batches by `fetch`, in training with draws per
    sample."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def fetch(self, ids: Any, draws: rng.Draws | None) -> tuple[Tensor, Tensor]:
        drawn = (
            torch.zeros(len(ids), 3)
            if draws is None
            else torch.from_numpy(draws.uniform(3))
        )
        return drawn, torch.from_numpy(ids.copy())


class Drawn(Noisy):
    """Noisy samples plus a table that is drawn in the constructor."""

    def __init__(self, samples: int) -> None:
        super().__init__(samples)
        self.table = torch.randn(samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point, label = super().__getitem__(index)
        return point + self.table[index], label


def loaded(
    source: Source,
    order: Order,
    last: int,
    workers: int = 0,
    *,
    first: int = 0,
    **how: Any,
) -> list[Batch]:
    """Return the batches of steps first + 1 to last."""
    return [
        *load(source, positions(order, first, last), Loading(workers, **how), PRESET)
    ]


def hashes(batches: Iterable[Batch]) -> list[int]:
    """Return the fingerprint of each batch: ids, inputs and targets."""
    return [int(fingerprint.of_tensors(tensors_of(batch))) for batch in batches]


def settings(**data: Any) -> Settings:
    """Return settings with these keys of `data`; by default, batches of 4 and no test
    split."""
    return typed(seed=0, data={"batch_size": 4, "test": None, **data})
