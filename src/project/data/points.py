"""A minimal data set to start from: points of a plane, above and below a line."""

import torch
from torch.utils.data import TensorDataset


class Points(TensorDataset):
    """Points, float32 (2,), each with its class, int64 (): 1 where the sum is positive, else 0.

    They are drawn when the data set is built: `seeds.data` and the split decide which.
    """

    def __init__(self, samples: int) -> None:
        points = torch.randn(samples, 2)
        super().__init__(points, (points.sum(dim=1) > 0).long())
