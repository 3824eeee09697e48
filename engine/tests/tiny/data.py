"""A data set whose every sample draws from all three global generators."""

import random

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tests.tiny import CLASSES, FEATURES


class Noisy(Dataset[tuple[Tensor, int]]):
    """Noisy points around one centre per class."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return a point, float32 (FEATURES,), and its class."""
        label = index % CLASSES
        point = torch.randn(FEATURES) + float(np.random.normal(scale=0.1)) + random.random()
        point[label] += 3
        return point, label
