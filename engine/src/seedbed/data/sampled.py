"""The order that a sampler gives: asked for each epoch, and held to what was agreed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from seedbed import rng
from seedbed.data.positions import Ids, Position
from seedbed.errors import InputError

_CHECK = "data.sampler: expected"


class Sampled:
    """Batches by a sampler (`data.sampler`), whose every answer must be the same again.

    At the start it is asked for the first epoch, the second and the first again: a resumed run
    asks for fewer epochs and must get the same. The rehearsal of a resume cannot tell, since it
    asks a new sampler as the first one was asked.
    """

    def __init__(self, sampler: Any, n: int, seed: int, multiple_of: int = 1) -> None:
        """Ask a sampler for the first two epochs.

        Args:
            n: samples of the training set.
            seed: of the order stream.
            multiple_of: what the size of every batch must be a multiple of: the shards.

        Raises:
            InputError: it is no sampler, or not a pure one.
        """
        self._sampler, self._n, self._seed, self._multiple_of = sampler, n, seed, multiple_of
        self._name = type(sampler).__name__
        self._kept: dict[int, list[Position]] = {}  # of the last epochs that were asked for
        self._samples: dict[int, int] = {}  # of each epoch that was asked for
        self.steps_per_epoch = 0  # not known yet
        first = self._ask(0)
        self.steps_per_epoch = len(first)
        self._ask(1)
        if not all(map(np.array_equal, first, self._ask(0))):
            raise InputError(
                f"{_CHECK} batches that depend on epoch, n and rng alone, got others from "
                f"{self._name} when asked for epoch 0 again; keep nothing from call to call, and "
                "draw from the generator that batches() gets"
            )

    def position(self, epoch: int, index: int) -> Position:
        """Return a batch of an epoch."""
        return self._epoch(epoch)[index]

    def samples(self, steps: int) -> int:
        """Return how many samples so many steps take; asks for epochs before a resumed one."""
        epochs, rest = divmod(steps, self.steps_per_epoch)
        for epoch in range(epochs):
            if epoch not in self._samples:
                self._epoch(epoch)
        last = [len(position.ids) for position in self._epoch(epochs)[:rest]] if rest else []
        return sum(self._samples[epoch] for epoch in range(epochs)) + sum(last)

    def _epoch(self, epoch: int) -> list[Position]:
        if epoch not in self._kept:
            batches = self._ask(epoch)
            if len(self._kept) == 2:
                self._kept.pop(next(iter(self._kept)))
            self._kept[epoch] = _with_repeats(epoch, batches)
            self._samples[epoch] = sum(map(len, batches))
        return self._kept[epoch]

    def _ask(self, epoch: int) -> list[Ids]:
        """Return the batches of an epoch, each int64 (B,), checked and copied."""
        key = rng.key(self._seed, "order", epoch)
        rng.seed_globals(key)  # a sampler may draw from them, too
        found = self._sampler.batches(epoch, self._n, rng.generator(key))
        batches = [np.asarray(batch).copy() for batch in found]
        if not batches:
            raise self._wrong("no batch", epoch)
        for batch in batches:
            if batch.ndim != 1 or batch.dtype.kind not in "iu" or not batch.size:
                raise self._wrong(f"{batch.dtype} of shape {batch.shape}", epoch)
            if batch.min() < 0 or batch.max() >= self._n:  # -1 would be the last sample
                raise self._wrong(f"ids from {batch.min()} to {batch.max()}", epoch)
            if len(batch) % self._multiple_of:
                raise InputError(
                    f"{_CHECK} batches whose size is a multiple of trainer.shards "
                    f"({self._multiple_of}), got {len(batch)} samples in epoch {epoch} from "
                    f"{self._name}; leave out or repeat samples, or set trainer.shards=1"
                )
        if self.steps_per_epoch and len(batches) != self.steps_per_epoch:
            raise InputError(
                f"{_CHECK} {self.steps_per_epoch} batches in every epoch, as in the first, got "
                f"{len(batches)} in epoch {epoch} from {self._name}; return as many"
            )
        return [batch.astype(np.int64) for batch in batches]

    def _wrong(self, got: str, epoch: int) -> InputError:
        return InputError(
            f"{_CHECK} batches of sample ids from 0 to {self._n - 1}, got {got} in epoch {epoch} "
            f"from {self._name}; return a list with an array or a list of integers for each batch"
        )


def _with_repeats(epoch: int, batches: Sequence[Ids]) -> list[Position]:
    """Return positions, in which a sample that comes again in the epoch knows how often it did."""
    ids = np.concatenate(batches)
    by_id = np.argsort(ids, kind="stable")
    is_new = np.diff(ids[by_id], prepend=-1) != 0
    if is_new.all():
        return [Position(epoch, batch) for batch in batches]
    starts = np.flatnonzero(is_new)
    repeats = np.empty_like(ids)
    repeats[by_id] = np.arange(len(ids)) - starts[np.cumsum(is_new) - 1]
    ends = np.cumsum([len(batch) for batch in batches])
    return [
        Position(epoch, batch, each)
        for batch, each in zip(batches, np.split(repeats, ends[:-1]), strict=True)
    ]
