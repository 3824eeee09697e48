"""The samples of each batch, as a pure function of the seed and the step."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from seedbed import rng

Ids = NDArray[np.int64]

# Up to this many samples, the order of an epoch is sorted as a whole, in a quarter of a
# second and 100 MB. Of more samples, blocks of the order are computed when they are
# needed.
SORTED_SAMPLES = 1 << 21
_BLOCK = 1 << 16  # samples, computed in 20 ms


class Position(NamedTuple):
    """The epoch and the sample ids of a batch, which determine its content."""

    epoch: int
    ids: Ids  # int64 (B,), not the cached order itself, since user code may write to it
    # int64 (B,), earlier occurrences in the epoch; None: none
    repeats: Ids | None = None

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

    def __init__(
        self, n: int, batch_size: int, seed: int, drop_last: bool = True
    ) -> None:
        self._n = n
        self._batch_size = batch_size
        self._seed = seed
        self.steps_per_epoch = n // batch_size if drop_last else -(-n // batch_size)
        self.samples_per_epoch = self.steps_per_epoch * batch_size if drop_last else n

    def position(self, epoch: int, index: int) -> Position:
        start = index * self._batch_size
        stop = min(start + self._batch_size, self._n)
        return Position(epoch, order_of_epoch(self._seed, epoch, self._n, start, stop))


class EvaluationPositions(Sequence[Position]):
    """The positions that cover a data set once, in the order of the samples; each made
    when read.

    A slice of them is as well.
    """

    def __init__(self, n: int, batch_size: int, batches: range | None = None) -> None:
        self._n = n
        self._batch_size = batch_size
        self._batches = range(-(-n // batch_size)) if batches is None else batches

    def __len__(self) -> int:
        return len(self._batches)

    @overload
    def __getitem__(self, index: int) -> Position: ...
    @overload
    def __getitem__(self, index: slice) -> "EvaluationPositions": ...
    def __getitem__(self, index: int | slice) -> "Position | EvaluationPositions":
        if isinstance(index, slice):
            return EvaluationPositions(self._n, self._batch_size, self._batches[index])
        start = self._batches[index] * self._batch_size
        return Position(0, np.arange(start, min(start + self._batch_size, self._n)))


def order_of_epoch(seed: int, epoch: int, n: int, start: int, stop: int) -> Ids:
    """Return the ids at the positions from `start` to `stop` of an epoch's order of n
    samples."""
    if n <= SORTED_SAMPLES:
        return _block(seed, epoch, n, n, 0)[start:stop].copy()  # user code may write
    parts: list[Ids] = []
    for number in range(start // _BLOCK, -(-stop // _BLOCK)):
        offset = number * _BLOCK
        block = _block(seed, epoch, n, _BLOCK, number)
        parts.append(block[max(start - offset, 0) : stop - offset])
    return np.concatenate(parts)


@lru_cache(maxsize=2)
def _block(seed: int, epoch: int, n: int, size: int, number: int) -> Ids:
    key = rng.key(seed, "order", epoch)
    if size == n:
        return rng.permutation(key, n)
    return rng.part_of_permutation(
        key, n, np.arange(number * size, min((number + 1) * size, n))
    )
