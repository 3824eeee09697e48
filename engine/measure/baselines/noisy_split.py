"""A data set for guarantees.py, as people write it: cut at random, with noisy
samples."""

import random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, random_split

_PARTS = {"train": 0, "validation": 1, "test": 2}


class NoisySplit(Dataset[tuple[Tensor, int]]):
    """Points above and below a line, in three parts; every sample has noise, in all of
    them.

    The split and the points come from the global generators, as does the noise, drawn
    by `random`, NumPy and torch. A point is computed when it is first needed, and kept.
    """

    def __init__(self, split: str, samples: int) -> None:
        points = torch.randn(samples, 2)
        self.points = random_split(points, [0.7, 0.15, 0.15])[_PARTS[split]]
        self.kept: dict[int, Tensor] = {}

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point = self.kept.setdefault(index, self.points[index] * 2)
        noise = torch.randn(2) + random.random() + np.random.normal()
        return point + 0.1 * noise, int(point.sum() > 0)
