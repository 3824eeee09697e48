"""The backward passes of `F.grid_sample`: values added at neighbours, in a fixed order.

Formulas: aten/src/ATen/native/GridSamplerUtils.h and UpSample.h of PyTorch.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_deterministic_kernels.precision import wide

BILINEAR, NEAREST, BICUBIC = range(3)
ZEROS, BORDER, REFLECTION = range(3)
_A = -0.75  # of PyTorch's cubic convolution


class Tap(NamedTuple):
    """A neighbour of each sampled point along a dimension."""

    place: Tensor
    weight: Tensor
    slope: Tensor  # the derivative of the weight by the point's coordinate


def _padded(
    at: Tensor, size: int, padding: int, align_corners: bool
) -> tuple[Tensor, Tensor]:
    """Return coordinates moved inside by the padding, and their derivatives by the
    given ones."""
    slope = torch.ones_like(at)
    if padding == REFLECTION:
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if not span:
            return torch.zeros_like(at), torch.zeros_like(at)
        slope = torch.where(at < low, -slope, slope)
        at = (at - low).abs()
        is_odd = (at / span).floor() % 2 == 1
        slope = torch.where(is_odd, -slope, slope)
        at = torch.where(is_odd, span - at.fmod(span), at.fmod(span)) + low
    if padding != ZEROS:
        slope = torch.where((at <= 0) | (at >= size - 1), 0, slope)
        at = at.clamp(0, size - 1)
    return at, slope


def _cubic(distance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weight at a distance, and its derivative by the distance."""
    x = distance.abs()
    near = ((_A + 2) * x - (_A + 3)) * x * x + 1, (3 * (_A + 2) * x - 2 * (_A + 3)) * x
    far = _A * (((x - 5) * x + 8) * x - 4), _A * ((3 * x - 10) * x + 8)
    weight, slope = (torch.where(x <= 1, *each) for each in zip(near, far, strict=True))
    return weight, slope * distance.sign()


def taps(
    at: Tensor, slope: Tensor, size: int, mode: int, padding: int, align_corners: bool
) -> Iterator[Tap]:
    """Yield the neighbours along a dimension of points in pixels, which have these
    derivatives.

    Those of NaN are outside of the image, and have NaN as weights, which points'
    gradients show.
    """
    if mode != BICUBIC:
        at, inner = _padded(at, size, padding, align_corners)
        slope = slope * inner
    near = torch.where(at.abs() < 2**30, at, -100)  # outside, also if it is NaN
    start = near.round() if mode == NEAREST else near.floor()
    for step in {BILINEAR: (0, 1), NEAREST: (0,), BICUBIC: (-1, 0, 1, 2)}[mode]:
        index = start + step
        distance = at - index
        if mode == BICUBIC:
            weight, change = _cubic(distance)
            index, _ = _padded(index, size, padding, align_corners)
            yield Tap(index.long(), weight, change * slope)
        elif mode == BILINEAR:
            yield Tap(index.long(), 1 - distance.abs(), slope if step else -slope)
        else:
            yield Tap(index.long(), torch.ones_like(at), torch.zeros_like(at))


def gradients(
    sampled: Tensor,
    values: Tensor,
    along: Sequence[Sequence[Tap]],
    wants: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of samples of images (N, C, *sizes), from `values` (N, points,
    C).

    For the images, if the first is wanted, and for the points, (N, points, dimensions),
    if the second is; and, if this is, the samples, (N, points, C). `along` has the taps
    of each dimension.
    """
    count, channels, *sizes = sampled.shape
    plane = prod(sizes)
    inputs = wide(sampled).reshape(count, channels, plane).movedim(1, 2)
    inputs = inputs.reshape(count * plane, channels)
    of_input = torch.zeros_like(inputs)
    samples = torch.zeros_like(values)
    of_points = values.new_zeros([*values.shape[:2], len(sizes)])
    first = plane * torch.arange(count, device=values.device)[:, None]
    for corner in product(*along):
        place = first
        weight = torch.ones_like(of_points[..., 0])
        is_inside = torch.ones_like(weight, dtype=torch.bool)
        for dimension, tap in enumerate(corner):
            size = sizes[dimension]
            place = place + tap.place.clamp(0, size - 1) * prod(sizes[dimension + 1 :])
            is_inside &= (tap.place >= 0) & (tap.place < size)
            weight = weight * tap.weight
        flat = place.flatten()
        weight = torch.where(is_inside, weight, 0)
        if wants[0]:
            rows = (values * weight[..., None]).reshape(len(flat), channels)
            of_input.index_put_((flat,), rows, accumulate=True)
        if wants[1]:
            seen = inputs[flat].view_as(values)
            samples += seen * weight[..., None]
            change = (seen * values).sum(2) * is_inside
            for dimension in range(len(sizes)):
                others = [
                    t.slope if d == dimension else t.weight
                    for d, t in enumerate(corner)
                ]
                of_points[..., dimension] += change * torch.stack(others).prod(0)
    of_input = (
        of_input.view(count, plane, channels).movedim(2, 1).reshape(sampled.shape)
    )
    return of_input.to(sampled.dtype).contiguous(), of_points, samples


def backward(
    gradient: Tensor,
    sampled: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    align_corners: bool,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of `F.grid_sample` in 2 or 3 dimensions for its input and
    its grid."""
    count, channels, *sizes = sampled.shape
    number = prod(grid.shape[1:-1])
    # x comes first there
    points = wide(grid).reshape(count, number, len(sizes)).flip(-1)
    along = []
    for dimension, size in enumerate(sizes):
        scale = (size - 1) / 2 if align_corners else size / 2
        at = (points[..., dimension] + 1) * scale - (0 if align_corners else 0.5)
        slope = torch.full_like(at, scale)
        along.append([*taps(at, slope, size, mode, padding, align_corners)])
    # of each point
    values = wide(gradient).reshape(count, channels, number).movedim(1, 2)
    wants = output_mask[0], output_mask[1] and mode != NEAREST
    of_input, of_points, _ = gradients(sampled, values, along, wants)
    of_grid = of_points.flip(-1).reshape(grid.shape).to(grid.dtype)
    return of_input if output_mask[0] else None, of_grid if output_mask[1] else None


def cudnn_backward(sampled: Tensor, grid: Tensor, gradient: Tensor) -> Any:
    """Return the gradients of cuDNN's sampler: bilinear, zeros around, aligned
    corners."""
    return backward(gradient, sampled, grid, BILINEAR, ZEROS, True, [True, True])
