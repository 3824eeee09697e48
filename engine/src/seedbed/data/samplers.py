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
from seedbed.rng import Generator

Values = str | Sequence[float]  # one for each sample, or the name of an attribute of the data set


class Weighted:
    """Draw samples with replacement, by their weights."""

    def __init__(self, dataset: Any, batch_size: int, weights: Values) -> None:
        values = values_of(dataset, weights, "weights")
        self._chances, self._batch_size = values / values.sum(), batch_size

    def batches(self, _epoch: int, n: int, rng: Generator) -> list[Ids]:
        """Return as many whole batches as n samples fill."""
        shape = (max(n // self._batch_size, 1), self._batch_size)
        return list(rng.choice(n, shape, p=self._chances))


class Buckets:
    """Put samples of like length together, in batches of varying size.

    A batch of B samples of which the longest has length L has B x L <= `batch_length`, so that
    padding is small and memory even. Each epoch makes other batches, in another order.
    """

    def __init__(
        self,
        dataset: Any,
        batch_length: int,
        lengths: Values,
        width: float = 1,
        multiple_of: int = 1,
    ) -> None:
        """Take the length of each sample.

        Args:
            batch_length: of a batch after padding: samples times length.
            width: lengths that round up to the same multiple of it are mixed.
            multiple_of: of which the size of each batch is one, such as `${trainer.shards}`; what
                is left over is left out.
        """
        rounded = np.ceil(values_of(dataset, lengths, "lengths") / width) * width
        self._lengths = np.maximum(rounded, 1)
        self._batch_length, self._multiple_of = batch_length, multiple_of

    def batches(self, _epoch: int, n: int, rng: Generator) -> list[Ids]:
        """Return batches of all samples, the longest together, the batches in random order."""
        order = rng.permutation(n)
        order = order[np.argsort(-self._lengths[order], kind="stable")]
        batches, unit = [], self._multiple_of
        while len(order) >= unit:
            fitting = int(self._batch_length // self._lengths[order[0]])
            size = max(min(fitting, len(order)) // unit * unit, unit)
            batches.append(order[:size])
            order = order[size:]
        return [batches[index] for index in rng.permutation(len(batches))]


def values_of(dataset: Any, values: Values, argument: str) -> NDArray[np.float64]:
    """Return one number for each sample of a data set, float64 (n,).

    The attribute may hold or return them; of a part (`seedbed.data.part`, torch's `Subset`) it may
    be one of the whole data set.
    """
    name = values
    if isinstance(values, str):
        values = _attribute(dataset, values)
    numbers = np.asarray(np.nan if values is None else values, np.float64)
    if numbers.shape != (len(dataset),):
        raise InputError(
            f"data.sampler.{argument}: expected a number for each of {len(dataset)} samples, or an "
            f"attribute of {type(dataset).__name__} with them, got {str(name)[:60]}"
        )
    return numbers


def _attribute(dataset: Any, name: str) -> Any:
    value = getattr(dataset, name, None)
    if value is None and hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        whole = _attribute(dataset.dataset, name)
        return None if whole is None else np.asarray(whole)[np.asarray(dataset.indices)]
    return value() if callable(value) else value


class Sampled:
    """Batches by a sampler, which must give the same ones whenever it is asked.

    At the start it is asked for the first epoch, the second and the first again: a resumed run
    asks for fewer epochs and must get the same. The rehearsal of a resume cannot tell, since it
    asks a new sampler as the first one was asked.
    """

    def __init__(self, sampler: Any, n: int, seed: int, multiple_of: int = 1) -> None:
        """Ask a sampler for the first two epochs.

        Args:
            sampler: its method `batches(epoch, n, rng)` returns the ids of the samples of each
                batch. Sizes may differ, and a sample may come several times.
            n: samples of the training set.
            seed: of the order stream.
            multiple_of: what the size of every batch must be a multiple of: the shards.

        Raises:
            InputError: the sampler depends on more than its arguments.
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
    ends = np.cumsum([len(batch) for batch in batches])
    pairs = zip(batches, np.split(repeats, ends[:-1]), strict=True)
    return [Position(epoch, batch, each) for batch, each in pairs]
