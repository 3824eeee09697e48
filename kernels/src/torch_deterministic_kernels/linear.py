"""Backward passes of pooling, resizing and padding: linear and separable operations.

Each is a product with the transposed matrix of each dimension (or, for padding, a sum
of slices), where PyTorch's CUDA kernels add to the inputs in no fixed order. Half
precision is computed in float32.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn.functional import pad

from torch_deterministic_kernels.precision import exact, narrow, wide

aten = torch.ops.aten
CHANNELS_LAST = (torch.channels_last, torch.channels_last_3d)
_ROWS = 128  # of a block: an input affects outputs near it alone
# blocks of rows: the columns that are not zero, and these
Matrix = list[tuple[slice, Tensor]]


@lru_cache(maxsize=256)
def _matrix(
    operation: Callable[..., Tensor],
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    *options: Any,
) -> Matrix:
    """Return the matrix (inputs, outputs) of a linear operation on images, along their
    height."""
    blocks = []
    for start in range(0, size, _ROWS):
        rows = torch.arange(start, min(start + _ROWS, size), device=device)
        units = (rows[:, None] == torch.arange(size, device=device)).to(dtype)
        weights = operation(units.view(1, *units.shape, 1), *options)[0, :, :, 0]
        used = weights.any(0).nonzero().flatten().tolist() or [0]
        columns = slice(used[0], used[-1] + 1)
        blocks.append((columns, weights[:, columns].contiguous()))
    return blocks


def _transposed(
    gradient: Tensor, matrix_of: Callable[..., Matrix], dimensions: int
) -> Tensor:
    """Multiply the last dimensions of a gradient by transposed matrices.

    `matrix_of` has arguments dimension (from 0), dtype and device. No dimension is
    moved: a tensor is a stack of matrices, also where the channels are stored last.
    """
    result = exact(gradient)
    # else four dimensions have no channels last
    has_batch = gradient.dim() == dimensions + 2
    is_last = has_batch and suggest_memory_format(gradient) in CHANNELS_LAST
    if is_last:
        result = result.movedim(1, -1)
    first = result.dim() - dimensions - is_last
    for number in range(dimensions):
        matrix = matrix_of(number, result.dtype, result.device)
        result = _multiplied(result, matrix, first + number)
    if is_last:
        result = result.movedim(-1, 1)
    return narrow(result, gradient)


def _multiplied(values: Tensor, matrix: Matrix, dimension: int) -> Tensor:
    """Multiply one dimension of a tensor, of outputs, by a matrix (inputs, outputs)."""
    before = values.shape[:dimension]
    after = values.shape[dimension + 1 :]
    if prod(after) == 1:
        stack = values.reshape(prod(before), values.shape[dimension])
        parts = [stack[:, columns] @ weights.T for columns, weights in matrix]
    else:
        stack = values.reshape(prod(before), values.shape[dimension], prod(after))
        parts = [weights @ stack[:, columns] for columns, weights in matrix]
    inputs = torch.cat(parts, 1) if len(parts) > 1 else parts[0]
    return inputs.reshape(*before, inputs.shape[1], *after)


def upsample(
    gradient: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    align_corners: bool,
    *scales: float | None,
    resize: str,
    is_antialiased: bool = False,
) -> Tensor:
    """Return the gradient of `F.interpolate` for its input.

    `resize` names the operation that resizes images by the weights of the mode; a
    dimension is the height of such an image.
    Formula:
    https://pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html
    """
    if "bicubic" in resize:
        gradient = gradient.contiguous()  # as PyTorch's are
    if [*input_size[2:]] == [*output_size] and not is_antialiased:
        return gradient.clone()  # whatever the scales

    def matrix_of(dimension: int, dtype: torch.dtype, device: torch.device) -> Matrix:
        # The images are resized from a width of 1 to 2: those whose size stays are
        # copied.
        out = output_size[dimension]
        size = input_size[2 + dimension]
        scale = scales[dimension] if scales else None
        return _matrix(
            getattr(aten, resize), size, dtype, device, (out, 2), align_corners, scale
        )

    return _transposed(gradient, matrix_of, len(output_size))


def adaptive_avg_pool(gradient: Tensor, pooled: Tensor, dimensions: int) -> Tensor:
    """Return the gradient of `F.adaptive_avg_pool2d` or `3d` for its input `pooled`."""

    def matrix_of(dimension: int, dtype: torch.dtype, device: torch.device) -> Matrix:
        out = gradient.shape[-dimensions:][dimension]
        size = pooled.shape[-dimensions:][dimension]
        return _matrix(aten._adaptive_avg_pool2d, size, dtype, device, (out, 1))

    result = _transposed(gradient, matrix_of, dimensions)
    return narrow(result, pooled) if dimensions == 2 else result.contiguous()


def avg_pool3d(
    gradient: Tensor,
    pooled: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """Return the gradient of `F.avg_pool3d` for its input; the counts are products,
    too."""
    options = ceil_mode, count_include_pad, None if divisor is None else 1

    def matrix_of(dimension: int, dtype: torch.dtype, device: torch.device) -> Matrix:
        kernel, step, before = (
            values[dimension % len(values)]
            for values in (kernel_size, stride or kernel_size, padding)
        )
        size = pooled.shape[-3:][dimension]
        along = (kernel, 1), (step, 1), (before, 0)
        return _matrix(aten.avg_pool2d, size, dtype, device, *along, *options)

    gradient = gradient if divisor is None else gradient / divisor
    return _transposed(gradient, matrix_of, 3).contiguous()  # as PyTorch's are


def padded(
    gradient: Tensor, inner: Tensor, padding: Sequence[int], reflects: bool
) -> Tensor:
    """Return the gradient of `F.pad` with mode reflect or replicate for its input
    `inner`."""
    result = wide(gradient)
    for number in range(len(padding) // 2):
        dimension = -1 - number
        before, after = padding[2 * number : 2 * number + 2]
        cropped = [0, 0] * number + [max(-before, 0), max(-after, 0)]
        padded = pad(result, cropped)
        size = inner.shape[dimension]
        before = max(before, 0)
        after = max(after, 0)
        left = padded.narrow(dimension, 0, before)
        right = padded.narrow(dimension, -after, after)
        result = padded.narrow(dimension, before, size).clone()
        if reflects:
            result.narrow(dimension, 1, before).add_(left.flip(dimension))
            result.narrow(dimension, size - 1 - after, after).add_(
                right.flip(dimension)
            )
        else:
            result.narrow(dimension, 0, 1).add_(left.sum(dimension, keepdim=True))
            result.narrow(dimension, size - 1, 1).add_(
                right.sum(dimension, keepdim=True)
            )
    return result.to(gradient.dtype).contiguous()  # as PyTorch's are on a GPU
