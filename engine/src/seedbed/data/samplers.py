"""Samplers: which samples each batch of an epoch is made of (`data.sampler`), and their order.

`batches(epoch, n, rng)` is a pure function: for n samples it returns the ids of each batch, drawn
from `rng` alone, which belongs to the seed (`seeds.order`) and the epoch. An argument `dataset` of
the constructor gets the training set.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed import rng
from seedbed.data.positions import Ids, Position
from seedbed.errors import InputError


def values_of(dataset: Any, name: str) -> NDArray[np.float64]:
    """Return what an attribute of a data set holds, or returns, for each sample: float64 (n,).

    Of a part (`seedbed.data.part`, torch's `Subset`) it may be one of the whole data set.
    """
    if hasattr(dataset, "indices") and not hasattr(dataset, name):
        return np.take(values_of(dataset.dataset, name), np.asarray(dataset.indices))
    found = getattr(dataset, name, np.nan)
    numbers = np.asarray(found() if callable(found) else found, np.float64)
    if numbers.shape != (len(dataset),):
        raise InputError(
            f"data.sampler: expected a number for each of {len(dataset)} samples in {name} of "
            f"{type(dataset).__name__}, got an array of shape {numbers.shape}"
        )
    return numbers


class Sampled:
    """Batches by a sampler, which must give the same ones whenever it is asked.

    At the start it is asked for the first epoch, the second and the first again: a resumed run
    asks for fewer epochs and must get the same. The rehearsal of a resume cannot tell, since it
    asks a new sampler as the first one was asked.

    `batches(epoch, n, rng)` returns the ids of the samples of each batch. Sizes may differ, and a
    sample may come several times.
    """

    def __init__(self, sampler: Any, n: int, seed: int, multiple_of: int = 1) -> None:
        """Ask a sampler for the first two epochs.

        Args:
            n: samples of the training set.
            seed: of the order stream.
            multiple_of: what the size of every batch must be a multiple of: the shards.
        """
        self._sampler, self._n, self._seed, self._multiple_of = sampler, n, seed, multiple_of
        self._name = type(sampler).__name__
        self.steps_per_epoch = 0  # not known yet
        first = self._ask(0)
        self.steps_per_epoch, self.samples_per_epoch = len(first), sum(map(len, first))
        self._ask(1)
        if not all(map(np.array_equal, first, self._ask(0))):
            raise InputError(
                "data.sampler: expected batches that depend on epoch, n and rng alone, got others "
                f"from {self._name} when asked for epoch 0 again; draw from the rng it gets"
            )
        self._epoch = lru_cache(maxsize=2)(lambda epoch: _with_repeats(epoch, self._ask(epoch)))

    def position(self, epoch: int, index: int) -> Position:
        return self._epoch(epoch)[index]

    def _ask(self, epoch: int) -> list[Ids]:
        """Return the batches of an epoch, each int64 (B,), copied."""
        key = rng.key(self._seed, "order", epoch)
        rng.seed_globals(key)  # a sampler may draw from them, too
        batches = [*map(np.array, self._sampler.batches(epoch, self._n, rng.generator(key)))]
        for ids in batches:
            are_ids = ids.dtype.kind in "iu" and ids.size and 0 <= ids.min() <= ids.max() < self._n
            if not are_ids or len(ids) % self._multiple_of:  # -1 would be the last sample
                raise InputError(
                    f"data.sampler: expected batches of ids from 0 to {self._n - 1}, in multiples "
                    f"of trainer.shards ({self._multiple_of}), got {ids.dtype} of shape "
                    f"{ids.shape} in epoch {epoch} from {self._name}"
                )
        if len(batches) != (self.steps_per_epoch or len(batches)):
            raise InputError(
                f"data.sampler: expected {self.steps_per_epoch} batches in every epoch, got "
                f"{len(batches)} in epoch {epoch} from {self._name}"
            )
        return [ids.astype(np.int64) for ids in batches]


def _with_repeats(epoch: int, batches: Sequence[Ids]) -> list[Position]:
    """Return positions, in which a sample that comes again in the epoch knows how often it did."""
    ids = np.concatenate(batches)
    by_id = np.argsort(ids, kind="stable")
    is_new = np.diff(ids[by_id], prepend=-1) != 0
    starts = np.flatnonzero(is_new)
    repeats = np.empty_like(ids)
    repeats[by_id] = np.arange(len(ids)) - starts[np.cumsum(is_new) - 1]
    ends = np.cumsum([len(batch) for batch in batches])[:-1]
    return [Position(epoch, *each) for each in zip(batches, np.split(repeats, ends), strict=True)]
