"""Data sets that are streams: iterable, and shared among loader workers as people do it."""

import itertools
import random
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from tests.tiny import CLASSES, FEATURES


class Features(IterableDataset[tuple[Tensor, int]]):
    """Points with noise."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def numbers(self) -> list[int]:
        """Return the numbers of this worker's samples, in order."""
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return list(range(first, self.samples, step))

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for number in self.numbers():
            yield torch.randn(FEATURES) + number % CLASSES + random.random(), number % CLASSES


class Reordered(Features):
    """Begins elsewhere at each reading, as WebDataset does that shuffles without a seed."""

    readings = itertools.count()

    def numbers(self) -> list[int]:
        """Rotate them: a shuffle may by chance begin with the same."""
        numbers, first = super().numbers(), next(self.readings)
        return numbers[first:] + numbers[:first]
