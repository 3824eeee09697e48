"""Greyscale images in memory, as a data set that loads whole batches."""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import rng

# Mean and standard deviation of the pixels of MNIST's training set, where black is 0
# and white 1.
MNIST_MEAN = 0.1307
MNIST_STD = 0.3081

# (images, draws) -> images: each depends only on the image and its draws.
Augment = Callable[[Tensor, rng.Draws], Tensor]


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Greyscale images and their classes, stored as bytes and normalised when fetched.

    Args:
        images: uint8 (N, H, W).
        labels: uint8 (N,).
        augment: applied to training samples; None for no augmentation.
        sha256: digests of the files that the images were read from, for the record.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.uint8],
        augment: Augment | None,
        sha256: Mapping[str, str],
    ) -> None:
        self._images = torch.from_numpy(images).unsqueeze(1)
        self._labels = torch.from_numpy(labels.astype(np.int64))
        self._augment = augment
        self.sha256 = dict(sha256)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, float32 (1, H, W), and its class, int64 (), without
        augmentation."""
        images, labels = self.fetch(np.array([index]), None)
        return images[0], labels[0]

    def fetch(
        self, ids: NDArray[np.int64], draws: rng.Draws | None
    ) -> tuple[Tensor, Tensor]:
        """Return a batch, float32 (B, 1, H, W) and int64 (B,); augmented if draws are
        given."""
        index = torch.from_numpy(ids)
        images = self._images.index_select(0, index).float()
        if self._augment is not None and draws is not None:
            images = self._augment(images, draws)
        images = images.mul_(1 / (255 * MNIST_STD)).sub_(MNIST_MEAN / MNIST_STD)
        return images, self._labels.index_select(0, index)
