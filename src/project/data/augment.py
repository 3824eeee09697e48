"""Random changes to images: computed for a whole batch at once, drawn for each sample alone."""

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
    """Shift images by fractions of a pixel and rotate them about their centre.

    Attributes:
        max_shift_pixels: largest shift along each axis, in either direction.
        max_rotation_degrees: largest angle, in either direction; 0 to 45.
    """

    max_shift_pixels: float
    max_rotation_degrees: float

    def __post_init__(self) -> None:
        _check("max_shift_pixels", self.max_shift_pixels, math.inf)
        _check("max_rotation_degrees", self.max_rotation_degrees, 45)

    def __call__(self, images: Tensor, draws: rng.Draws) -> Tensor:
        """Return changed copies of images; what was outside an image is 0.

        Args:
            images: float32 (B, C, H, W).
            draws: of the samples that the images are, in this epoch.

        Returns:
            float32 (B, C, H, W): image i is a function of images[i] and its draws alone.
        """
        height, width = images.shape[-2:]
        grid = _sampling_grid(*self._draw(draws), height, width)
        return F.grid_sample(images, grid, align_corners=False)

    def _draw(self, draws: rng.Draws) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw cosine and sine of each sample's angle and its shifts in pixels, (B, 1, 1) each.

        Uniform is not the angle but the tangent of its half, which for small angles is all but the
        same: cosine and sine then take only +, * and /, which every processor rounds alike.
        """
        numbers = 2 * draws.uniform(3) - 1
        tangent = numbers[:, 0] * (math.pi / 360 * self.max_rotation_degrees)
        square = tangent * tangent
        cosine, sine = (1 - square) / (1 + square), 2 * tangent / (1 + square)
        shifts = numbers[:, 1:] * self.max_shift_pixels
        table = np.column_stack((cosine, sine, shifts)).astype(np.float32)
        cosine_, sine_, shift_x, shift_y = torch.from_numpy(table)[:, :, None, None].unbind(1)
        return cosine_, sine_, shift_x, shift_y


def _sampling_grid(
    cosine: Tensor, sine: Tensor, shift_x: Tensor, shift_y: Tensor, height: int, width: int
) -> Tensor:
    """Return where each pixel comes from, (B, H, W, 2), in grid_sample's units: -1 to 1."""
    x = torch.arange(width) - (width - 1) / 2
    y = torch.arange(height)[:, None] - (height - 1) / 2
    planes = torch.empty(len(cosine), 2, height, width)  # in this order they are written fastest
    # Sums of a row and a column: as many products as a row and a column have, not as the image has.
    row, column = (cosine * x) * (2 / width), (shift_x - sine * y) * (2 / width)
    torch.add(row, column, out=planes[:, 0])
    row, column = (sine * x) * (2 / height), (shift_y + cosine * y) * (2 / height)
    torch.add(row, column, out=planes[:, 1])
    return planes.permute(0, 2, 3, 1)


def _check(name: str, value: float, high: float) -> None:
    if not isinstance(value, int | float) or not 0 <= value <= high:
        limits = "a number >= 0" if high == math.inf else f"a number from 0 to {high:g}"
        raise InputError(f"data.augment.{name}: expected {limits}, got {value}; try 2")
