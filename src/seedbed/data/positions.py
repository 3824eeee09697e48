"""Which samples a batch is made of, as a pure function of the seed and the step."""

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from seedbed import rng


class Position(NamedTuple):
    """Which samples, and in which epoch: all that a batch depends on."""

    epoch: int
    ids: NDArray[np.int64]


def training_positions(
    n: int, batch_size: int, seed: int, first_step: int, last_step: int
) -> Iterator[Position]:
    """Yield the positions of steps first_step + 1 to last_step.

    Each epoch is a permutation of its own; what does not fill a batch at its end is left out, so
    that all batches have the same shape.
    """
    batches_per_epoch = n // batch_size
    for step in range(first_step, last_step):
        epoch, index = divmod(step, batches_per_epoch)
        ids = _order(seed, epoch, n)[index * batch_size : (index + 1) * batch_size]
        yield Position(epoch, ids)


def evaluation_positions(n: int, batch_size: int) -> list[Position]:
    """Return the positions that cover a data set once, in the order of the samples."""
    return [Position(0, np.arange(i, min(i + batch_size, n))) for i in range(0, n, batch_size)]


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    return rng.permutation(rng.key(seed, "order", epoch), n)
