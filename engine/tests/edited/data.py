"""Images of numbers, normalised and augmented."""

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

MEAN, DEVIATION = 0.5, 0.3


class Jitter:
    """Flip and brighten an image by chance."""

    def __init__(self, strength: float = 0.1) -> None:
        self.strength = strength

    def __call__(self, image: Tensor) -> Tensor:
        if random.random() < 0.5:
            image = image.flip(-1)
        return image + self.strength * random.random()


class Images(Dataset[tuple[Tensor, int]]):
    """Images of two channels, float32 (2, 8, 8), in four classes."""

    def __init__(self, samples: int = 64) -> None:
        self.rows = list(range(samples))
        draw = np.random.default_rng(0)
        self.images = torch.from_numpy(draw.random((samples, 2, 8, 8), dtype=np.float32))
        self.labels = [index % 4 for index in range(samples)]
        self.transform = Jitter(0.1)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        row = self.rows[index]
        image = (self.images[row] - MEAN) / DEVIATION
        return self.transform(image), self.labels[row]


def collate(samples: list[Any]) -> Any:
    images, labels = default_collate(samples)
    return images, labels


def unused(image: Tensor) -> Tensor:
    return image + 1
