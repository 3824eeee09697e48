"""Data sets that compute whole batches."""

import hashlib
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.datasets import SPLITS

Augment = Callable[[NDArray[np.float64], rng.Draws], NDArray[np.float64]]


class Batches(Dataset[tuple[Tensor, Tensor]]):
    """Samples computed from a seed and their indices, a batch at a time."""

    fetch: Callable[[NDArray[np.int64], rng.Draws | None], tuple[Tensor, Tensor]]

    def __init__(self, split: str, stream: str, seed: int, samples: int) -> None:
        self._key = rng.key(seed, stream, SPLITS.index(split))
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not 0 <= index < self._samples:
            raise IndexError(index)
        inputs, targets = self.fetch(np.array([index]), None)
        return inputs[0], targets[0]


class Noise:
    """Adds uniform noise in [0, size) to pixels."""

    def __init__(self, size: float) -> None:
        self._size = size

    def __call__(
        self, images: NDArray[np.float64], draws: rng.Draws
    ) -> NDArray[np.float64]:
        return images + self._size * draws.uniform(images[0].size).reshape(images.shape)


class Squares(Batches):
    """Noise, brighter in the quadrant of the image that is its class."""

    def __init__(
        self, split: str, seed: int, samples: int, augment: Augment | None = None
    ) -> None:
        super().__init__(split, "split", seed, samples)
        self._augment = augment
        # for the record
        self.sha256 = {"squares": hashlib.sha256(b"no file").hexdigest()}

    def fetch(
        self, ids: NDArray[np.int64], draws: rng.Draws | None
    ) -> tuple[Tensor, Tensor]:
        """Return images, float32 (B, 1, 8, 8), and classes, int64 (B,)."""
        images = 2 * rng.uniform(self._key, ids, 64).reshape(-1, 1, 8, 8) - 1
        down = ids % 4 // 2
        right = ids % 2
        for image, y, x in zip(images, 4 * down, 4 * right, strict=True):
            image[0, y : y + 4, x : x + 4] += 0.5
        if self._augment is not None and draws is not None:
            images = self._augment(images, draws)
        return torch.from_numpy(images.astype(np.float32)), torch.from_numpy(ids % 4)


class Adding(Batches):
    """Sequences of values and markers; the target is the sum of the two values with a
    marker."""

    def __init__(self, split: str, seed: int, samples: int, length: int) -> None:
        super().__init__(split, "data", seed, samples)
        self._length = length

    def fetch(
        self, ids: NDArray[np.int64], _: rng.Draws | None
    ) -> tuple[Tensor, Tensor]:
        """Return sequences, float32 (B, T, 2), and sums, float32 (B, 1)."""
        values = rng.uniform(self._key, ids, self._length)
        marks = np.zeros_like(values)
        marks[:, [0, self._length // 2]] = 1
        inputs = torch.from_numpy(np.stack((values, marks), 2).astype(np.float32))
        return inputs, inputs.prod(2).sum(1, keepdim=True)
