"""The samples of each batch, as a pure function of the seed and the step."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from seedbed import rng

Ids = NDArray[np.int64]


class Position(NamedTuple):
    """The epoch and the sample ids of a batch, which determine its content."""

    epoch: int
    ids: Ids  # int64 (B,), not the cached order itself, since user code may write to it
    repeats: Ids | None = None  # int64 (B,), earlier occurrences in the epoch; None: none

    def cut(self, start: int, stop: int) -> "Position":
        repeats = None if self.repeats is None else self.repeats[start:stop]
        return Position(self.epoch, self.ids[start:stop], repeats)


class Order(Protocol):
    """The order in which a training set is divided into batches."""

    steps_per_epoch: int
    samples_per_epoch: int  # in the first epoch

    def position(self, epoch: int, index: int) -> Position: ...


def positions(
    order: Order,
    first_step: int,
    last_step: int,
    steps_per_epoch: int | None = None,  # fewer than the order has
    repeats: bool = False,  # whether all epochs have the samples of the first one
) -> Iterator[Position]:
    """Yield the positions of steps first_step + 1 to last_step."""
    for step in range(first_step, last_step):
        epoch, index = divmod(step, steps_per_epoch or order.steps_per_epoch)
        yield order.position(0 if repeats else epoch, index)._replace(epoch=epoch)


class Shuffled:
    """A new permutation for each epoch, in batches of equal size.

    Samples left over at the end of an epoch are dropped, or form a smaller batch.
    """

    def __init__(self, n: int, batch_size: int, seed: int, drop_last: bool = True) -> None:
        self._n, self._batch_size, self._seed = n, batch_size, seed
        self.steps_per_epoch = n // batch_size if drop_last else -(-n // batch_size)
        self.samples_per_epoch = self.steps_per_epoch * batch_size if drop_last else n

    def position(self, epoch: int, index: int) -> Position:
        size = self._batch_size
        return Position(epoch, _order(self._seed, epoch, self._n)[index * size :][:size].copy())


def evaluation_positions(n: int, batch_size: int) -> list[Position]:
    """Return the positions that cover a data set once, in the order of the samples."""
    return [Position(0, np.arange(i, min(i + batch_size, n))) for i in range(0, n, batch_size)]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n: int) -> Ids:
    return rng.permutation(rng.key(seed, "order", epoch), n)
