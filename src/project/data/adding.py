"""The adding problem: remember two numbers over a long sequence, and add them."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.datasets import SPLITS
from seedbed.errors import InputError


class AddingProblem(Dataset[tuple[Tensor, Tensor]]):
    """Sequences of (value, marker); the target is the sum of the two marked values.

    Values are uniform in [0, 1), each half has one marker, and the target has variance
    1/6, so predicting 1 always gives a mean squared error of 1/6. Hochreiter &
    Schmidhuber (1997), https://doi.org/10.1162/neco.1997.9.8.1735, in the form of Le,
    Jaitly & Hinton (2015), https://arxiv.org/abs/1504.00941.

    Nothing is stored: a sequence is computed when it is fetched.

    Args:
        split: train, validation or test, which have different sequences.
        seed: that of the data stream.
        samples: number of sequences; the first n are the same for any number >= n.
        length: steps of a sequence, at least 2.
    """

    def __init__(self, split: str, seed: int, samples: int, length: int) -> None:
        if length < 2:  # both markers would be at the same step
            raise InputError(f"data.length: expected at least 2, got {length}")
        self._key = rng.key(seed, "data", SPLITS.index(split))
        self._samples = samples
        self._length = length

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return a sequence, float32 (T, 2), and its target, float32 (1,)."""
        if not 0 <= index < self._samples:
            raise IndexError(index)
        inputs, targets = self.fetch(np.array([index]), None)
        return inputs[0], targets[0]

    def fetch(
        self, ids: NDArray[np.int64], _: rng.Draws | None
    ) -> tuple[Tensor, Tensor]:
        """Compute sequences, float32 (B, T, 2), and targets, float32 (B, 1); no
        augmentation."""
        length = self._length
        half = self._length // 2
        numbers = rng.uniform(self._key, ids, length + 2)
        rows = np.arange(len(ids))
        first = (numbers[:, length] * half).astype(np.int64)
        second = half + (numbers[:, length + 1] * (length - half)).astype(np.int64)
        inputs = np.zeros((len(ids), length, 2), dtype=np.float32)
        inputs[:, :, 0] = numbers[:, :length]
        inputs[rows, first, 1] = inputs[rows, second, 1] = 1
        targets = inputs[rows, first, 0] + inputs[rows, second, 0]
        return torch.from_numpy(inputs), torch.from_numpy(targets[:, None])
