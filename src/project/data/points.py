"""A minimal data set to start from: points of a plane, above and below a line."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

from seedbed import rng
from seedbed.datasets import SPLITS


class Points(TensorDataset):
    """Points, float32 (2,), each with its class, int64 (): 1 where the sum is positive,
    else 0.

    They are drawn when the data set is built: `seed` and the split decide which.
    """

    def __init__(self, split: str, seed: int, samples: int) -> None:
        numbers = rng.generator(rng.key(seed, "data", SPLITS.index(split)))
        points = torch.from_numpy(
            numbers.standard_normal((samples, 2), dtype=np.float32)
        )
        super().__init__(points, (points.sum(dim=1) > 0).long())
