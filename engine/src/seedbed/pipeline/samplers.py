"""Samplers (`data.sampler`), which choose and order the samples of each batch of an
epoch.

`batches(epoch, n, rng)` is a pure function: for n samples it returns the ids of each
batch, drawn from `rng` alone, which is seeded by `seeds.order` and the epoch. If the
constructor has an argument `dataset` (or `data_source`, `data`), the training set is
passed to it. Samplers and batch samplers of torch's kind, which are iterables, are
adapted.
"""

import copy
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from seedbed import rng
from seedbed.errors import InputError
from seedbed.pipeline.positions import Ids, Position


class Adapted:
    """A sampler or batch sampler of torch's kind as a function from epochs to batches.

    It is built anew for each epoch under the seeds of the epoch, so that nothing lasts
    from one epoch to the next. One that would keep something is refused: it would never
    come into effect. Ids are cut into batches, without an incomplete last one.
    """

    def __init__(
        self, make: Callable[[], Any], batch_size: int, class_name: str
    ) -> None:
        self._make = make
        self._size = batch_size
        self._values: Mapping[str, Any] | None = None
        self.class_name = class_name  # of the sampler that `make` builds
        self.takes_epoch_values = False  # not known yet

    def set_epoch_values(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def batches(self, epoch: int, _n: int, draws: Any) -> list[Any]:
        sampler = self._make()
        key = int(draws.integers(2**63))
        passes = list[list[Any]]()
        self.takes_epoch_values = hasattr(sampler, "set_epoch_values")
        if self.takes_epoch_values and self._values is not None:
            sampler.set_epoch_values(copy.deepcopy(self._values))
        for _ in range(2 if epoch == 0 else 1):
            rng.seed_globals(key)
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            passes.append([np.asarray(item).tolist() for item in sampler])
        items = passes[0]
        if items != passes[-1]:
            raise InputError(
                "data.sampler: expected the same epoch each time that"
                f" {type(sampler).__name__} is iterated under equal seeds, got another;"
                " let it draw from the global generators, take the epoch from"
                " set_epoch, and count nothing"
            )
        if items and isinstance(items[0], list):  # a batch sampler
            return items
        end = len(items) // self._size * self._size
        return [items[i : i + self._size] for i in range(0, end, self._size)]


class Sampled:
    """The order of a sampler with `batches`; sizes may differ, and a sample may occur
    repeatedly.

    The constructor requests the first epoch, the second and the first again: a resumed
    run requests fewer epochs and must get the same batches. The rehearsal of a resume
    cannot detect a stateful sampler, since it calls a new sampler in the same sequence.
    """

    def __init__(
        self, sampler: Any, n: int, seed: int, multiple_of: int = 1, accumulate: int = 1
    ) -> None:
        """Check two epochs of n samples; steps of several batches divide into
        `multiple_of`."""
        self._accumulate = accumulate
        self.sampler = sampler
        self._n = n
        self._seed = seed
        self._multiple_of = multiple_of
        is_adapted = isinstance(sampler, Adapted)
        self._name = sampler.class_name if is_adapted else type(sampler).__name__
        self.steps_per_epoch = 0  # not known yet
        first = self._ask(0)
        self.steps_per_epoch = len(first)
        self.samples_per_epoch = sum(map(len, first))
        self._ask(1)
        if not all(map(np.array_equal, first, self._ask(0))):
            raise InputError(
                "data.sampler: expected batches that depend on epoch, n and rng alone,"
                f" got others from {self._name} when asked for epoch 0 again; draw from"
                " the rng it gets"
            )
        self._epoch = lru_cache(maxsize=2)(self._positions)

    def set_epoch_values(self, values: Mapping[str, Any]) -> bool:
        """Give the sampler the values for an epoch; return whether it takes any."""
        takes = hasattr(self.sampler, "set_epoch_values")
        if takes:
            self.sampler.set_epoch_values(copy.deepcopy(values))
            self._epoch.cache_clear()
        return takes and getattr(self.sampler, "takes_epoch_values", True)

    def position(self, epoch: int, index: int) -> Position:
        _, ids, repeats = self._epoch(epoch)[index]
        return Position(epoch, ids.copy(), repeats)

    def _ask(self, epoch: int) -> list[Ids]:
        """Return the batches of an epoch, each int64 (B,), copied."""
        key = rng.key(self._seed, "order", epoch)
        rng.seed_globals(key)  # a sampler may draw from them, too
        batches = [
            *map(np.array, self.sampler.batches(epoch, self._n, rng.generator(key)))
        ]
        if (several := self._accumulate) > 1:
            starts = range(0, len(batches) - several + 1, several)
            batches = [np.concatenate(batches[i : i + several]) for i in starts]
        for ids in batches:
            self._require_ids(ids, epoch)
        if len(batches) != (self.steps_per_epoch or max(len(batches), 1)):
            raise InputError(
                f"data.sampler: expected {self.steps_per_epoch or 'some'} batches in"
                f" every epoch, got {len(batches)} in epoch {epoch} from {self._name}"
            )
        return [ids.astype(np.int64) for ids in batches]

    def _require_ids(self, ids: Any, epoch: int) -> None:
        wanted = f"data.sampler: expected batches of ids from 0 to {self._n - 1}"
        where = f"in epoch {epoch} from {self._name}"
        if ids.dtype.kind not in "iu" or not ids.size or len(ids) % self._multiple_of:
            raise InputError(
                f"{wanted}, in multiples of trainer.shards ({self._multiple_of}), got"
                f" {ids.dtype} of shape {ids.shape} {where}"
            )
        # -1 would index the last one
        outside = ids[(ids < 0) | (ids >= self._n)]
        if outside.size:
            raise InputError(
                f"{wanted}, got {outside.flat[0]} {where}; if it keeps an attribute of"
                " the data set, let it read that by seedbed.datasets.values_of, since"
                " folds and `make test` pass it a part of the samples"
            )

    def _positions(self, epoch: int) -> list[Position]:
        """Return positions that count the earlier occurrences of each sample in the
        epoch."""
        batches = self._ask(epoch)
        ids = np.concatenate(batches)
        by_id = np.argsort(ids, kind="stable")
        is_new = np.diff(ids[by_id], prepend=-1) != 0
        repeats = np.empty_like(ids)
        repeats[by_id] = (
            np.arange(len(ids)) - np.flatnonzero(is_new)[np.cumsum(is_new) - 1]
        )
        ends = np.cumsum([len(batch) for batch in batches])[:-1]
        both = zip(batches, np.split(repeats, ends), strict=True)
        return [Position(epoch, mine, earlier) for mine, earlier in both]
