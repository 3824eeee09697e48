"""Grey images that fit into memory, as a data set that loads whole batches."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.errors import InputError

# Mean and standard deviation of the pixels of MNIST's training set, where black is 0 and white 1.
MNIST_MEAN, MNIST_STD = 0.1307, 0.3081


class Augment(Protocol):
    """A random change to images, such as `augment.ShiftAndRotate`."""

    def __call__(self, images: Tensor, draws: rng.Draws) -> Tensor:
        """Return changed images, (B, C, H, W): each a function of the image and its draws alone."""


class ImageDataset(Dataset[tuple[Tensor, Tensor]]):
    """Grey images with their classes, kept as bytes and normalised when they are fetched.

    Attributes:
        sha256: digests of the files that the images were read from, for the record.
    """

    def __init__(
        self,
        images: NDArray[np.uint8],
        labels: NDArray[np.uint8],
        augment: Augment | None,
        sha256: Mapping[str, str],
    ) -> None:
        """Hold images.

        Args:
            images: uint8 (N, H, W).
            labels: uint8 (N,).
            augment: applied in training; None: images stay as they are.
            sha256: file name to digest.
        """
        if augment is not None and not callable(augment):
            raise InputError(
                f"data.augment: expected a mapping with a _target_, or null, got {augment}; see "
                "configs/data/mnist.yaml"
            )
        self._images = torch.from_numpy(images).unsqueeze(1)
        self._labels = torch.from_numpy(labels.astype(np.int64))
        self._augment = augment
        self.sha256 = dict(sha256)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Return an image, float32 (1, H, W), and its class, int64 (), without augmentation."""
        return _normalise(self._images[index].float()), self._labels[index]

    def fetch(self, ids: NDArray[np.int64], draws: rng.Draws | None) -> tuple[Tensor, Tensor]:
        """Load a batch.

        Args:
            ids: int64 (B,).
            draws: for the augmentation; None: no augmentation.

        Returns:
            float32 (B, 1, H, W) with mean 0 and variance 1 over the data set; int64 (B,).
        """
        index = torch.from_numpy(ids)
        images = self._images.index_select(0, index).float()
        if self._augment is not None and draws is not None:
            images = self._augment(images, draws)
        return _normalise(images), self._labels.index_select(0, index)


def _normalise(images: Tensor) -> Tensor:
    return images.mul_(1 / (255 * MNIST_STD)).sub_(MNIST_MEAN / MNIST_STD)
