"""Data sets of the smallest model: points of a plane in memory, in two classes."""

import torch
from torch import Tensor
from torch.utils.data import TensorDataset


def points(samples: int) -> TensorDataset:
    """Return points, float32 (2,), each with its class, int64 ()."""
    points = torch.randn(samples, 2)
    return TensorDataset(points, (points.sum(dim=1) > 0).long())


class Points(TensorDataset):
    """The same points as a data set of the user's, whose samples may draw."""

    def __init__(self, samples: int) -> None:
        super().__init__(*points(samples).tensors)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return super().__getitem__(index)
