"""Random image augmentation, drawn for each sample and computed for a whole batch."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from seedbed import rng
from seedbed.errors import InputError


@dataclass(frozen=True)
class ShiftAndRotate:
    """Shift images by fractions of a pixel and rotate them about their centre."""

    max_shift_pixels: float  # along each axis, in either direction
    max_rotation_degrees: float  # in either direction, 0 to 45

    def __post_init__(self) -> None:
        # beyond, the approximation below is poor
        if not 0 <= self.max_rotation_degrees <= 45:
            got = self.max_rotation_degrees
            raise InputError(
                f"data.augment.max_rotation_degrees: expected 0 to 45, got {got}"
            )

    def __call__(self, images: Tensor, draws: rng.Draws) -> Tensor:
        """Return augmented copies of images, float32 (B, C, H, W); pixels from outside
        are 0.

        Image i depends only on images[i] and its draws.
        """
        numbers = 2 * draws.uniform(3) - 1
        # The tangent of half the angle is uniform, which for small angles is nearly the
        # same. Cosine and sine then need only +, * and /, which every processor rounds
        # in the same way.
        tangent = numbers[:, 0] * (math.pi / 360 * self.max_rotation_degrees)
        square = tangent * tangent
        cosine = (1 - square) / (1 + square)
        sine = 2 * tangent / (1 + square)
        shifts = numbers[:, 1:] * self.max_shift_pixels
        table = torch.from_numpy(
            np.column_stack((cosine, sine, shifts)).astype(np.float32)
        )
        grid = _sampling_grid(table, *images.shape[-2:])
        return F.grid_sample(images, grid, align_corners=False)


def _sampling_grid(table: Tensor, height: int, width: int) -> Tensor:
    """Return each pixel's source position, (B, H, W, 2), in grid_sample's units: -1 to
    1."""
    cosine, sine, shift_x, shift_y = table[:, :, None, None].unbind(1)  # (B, 1, 1) each
    x = torch.arange(width) - (width - 1) / 2
    y = torch.arange(height)[:, None] - (height - 1) / 2
    # the layout that is fastest to write
    planes = torch.empty(len(table), 2, height, width)
    row = (cosine * x) * (2 / width)
    column = (shift_x - sine * y) * (2 / width)
    torch.add(row, column, out=planes[:, 0])
    row = (sine * x) * (2 / height)
    column = (shift_y + cosine * y) * (2 / height)
    torch.add(row, column, out=planes[:, 1])
    return planes.permute(0, 2, 3, 1)
