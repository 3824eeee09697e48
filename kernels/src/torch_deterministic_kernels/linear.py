"""Backward passes of pooling, resizing and padding: linear and separable operations.

Each is a product with the transposed matrix of each dimension (or, for padding, a sum of slices),
where PyTorch's CUDA kernels add to the inputs in no fixed order. Half precision is computed in
float32.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn.functional import pad

aten = torch.ops.aten
# The resizing of images that has a dimension's weights, for each operation; comments as in
# __init__.py.
RESIZING = {
    "upsample_linear1d_backward": aten.upsample_bilinear2d,  # UpSampleLinear1d.cu
    "upsample_bilinear2d_backward": aten.upsample_bilinear2d,  # UpSampleBilinear2d.cu; direct calls
    "upsample_trilinear3d_backward": aten.upsample_bilinear2d,  # UpSampleTrilinear3d.cu; direct
    "upsample_bicubic2d_backward": aten.upsample_bicubic2d,  # UpSampleBicubic2d.cu; 2.15: direct
    "_upsample_bilinear2d_aa_backward": aten._upsample_bilinear2d_aa,  # UpSampleBilinear2d.cu
    "_upsample_bicubic2d_aa_backward": aten._upsample_bicubic2d_aa,  # UpSampleBilinear2d.cu
}
_ROWS = 128  # of a block: an input affects outputs near it alone
Matrix = list[tuple[slice, Tensor]]  # blocks of rows: the columns that are not zero, and these


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in the precision that sums are computed in."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def narrow(result: Tensor, like: Tensor) -> Tensor:
    """Return a result in the dtype and memory format of another tensor."""
    return result.to(like.dtype).contiguous(memory_format=suggest_memory_format(like))


def _matrix(operation: Callable[..., Tensor], size: int, gradient: Tensor, *how: Any) -> Matrix:
    """Return the matrix (inputs, outputs) of a linear operation on images, along their height."""
    return _blocks(operation, size, wide(gradient).dtype, gradient.device, *how)


@lru_cache(maxsize=256)
def _blocks(
    operation: Callable[..., Tensor], size: int, dtype: torch.dtype, device: torch.device, *how: Any
) -> Matrix:
    blocks = []
    for start in range(0, size, _ROWS):
        rows = torch.arange(start, min(start + _ROWS, size), device=device)
        units = (rows[:, None] == torch.arange(size, device=device)).to(dtype)
        weights = operation(units.view(1, *units.shape, 1), *how)[0, :, :, 0]
        used = weights.any(0).nonzero().flatten().tolist() or [0]
        columns = slice(used[0], used[-1] + 1)
        blocks.append((columns, weights[:, columns].contiguous()))
    return blocks


def _transposed(gradient: Tensor, matrices: Sequence[Matrix]) -> Tensor:
    """Multiply the last dimensions of a gradient by transposed matrices."""
    result = wide(gradient)
    for dimension, matrix in enumerate(matrices, start=-len(matrices)):
        outputs = result.movedim(dimension, -1)
        inputs = [outputs[..., columns] @ weights.T for columns, weights in matrix]
        result = torch.cat(inputs, -1).movedim(-1, dimension)
    return narrow(result, gradient)


def upsample(name: str) -> Callable[..., Tensor]:
    """Return the backward pass of `F.interpolate` with the weights of a mode.

    Formula: https://pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html
    """

    def backward(
        gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int],
        align_corners: bool, *scales: float | None,
    ) -> Tensor:  # fmt: skip
        if "bicubic" in name:  # whose gradients are contiguous
            gradient = gradient.contiguous()
        if [*input_size[2:]] == [*output_size] and "_aa_" not in name:
            return gradient.clone()  # whatever the scales
        matrices = []
        for dimension, out in enumerate(output_size):
            # The images are resized from a width of 1 to 2: those whose size stays are copied.
            how = (out, 2), align_corners, scales[dimension] if scales else None
            size = input_size[2 + dimension]
            matrices.append(_matrix(RESIZING[name], size, gradient, *how))
        return _transposed(gradient, matrices)

    return backward


def adaptive_avg_pool(gradient: Tensor, pooled: Tensor, dimensions: int) -> Tensor:
    """Return the gradient of `F.adaptive_avg_pool2d` or `3d` for its input `pooled`."""
    sizes = zip(pooled.shape[-dimensions:], gradient.shape[-dimensions:], strict=True)
    matrices = [_matrix(aten._adaptive_avg_pool2d, size, gradient, (out, 1)) for size, out in sizes]
    result = _transposed(gradient, matrices)
    return narrow(result, pooled) if dimensions == 2 else result.contiguous()


def avg_pool3d(
    gradient: Tensor, pooled: Tensor, kernel_size: Sequence[int], stride: Sequence[int],
    padding: Sequence[int], ceil_mode: bool, count_include_pad: bool, divisor: int | None,
) -> Tensor:  # fmt: skip
    """Return the gradient of `F.avg_pool3d` for its input; the counts are products, too."""
    how = ceil_mode, count_include_pad, None if divisor is None else 1
    matrices = []
    for number, size in enumerate(pooled.shape[-3:]):
        kernel, step, before = (
            values[number % len(values)] for values in (kernel_size, stride or kernel_size, padding)
        )
        along = (kernel, 1), (step, 1), (before, 0)
        matrices.append(_matrix(aten.avg_pool2d, size, gradient, *along, *how))
    return _transposed(gradient if divisor is None else gradient / divisor, matrices)


def padded(gradient: Tensor, inner: Tensor, padding: Sequence[int], reflects: bool) -> Tensor:
    """Return the gradient of `F.pad` with mode reflect or replicate for its input `inner`."""
    result = wide(gradient)
    for number in range(len(padding) // 2):
        dimension = -1 - number
        before, after = padding[2 * number : 2 * number + 2]
        cropped = [0, 0] * number + [max(-before, 0), max(-after, 0)]
        padded, size = pad(result, cropped), inner.shape[dimension]
        before, after = max(before, 0), max(after, 0)
        left, right = padded.narrow(dimension, 0, before), padded.narrow(dimension, -after, after)
        result = padded.narrow(dimension, before, size).clone()
        if reflects:
            result.narrow(dimension, 1, before).add_(left.flip(dimension))
            result.narrow(dimension, size - 1 - after, after).add_(right.flip(dimension))
        else:
            result.narrow(dimension, 0, 1).add_(left.sum(dimension, keepdim=True))
            result.narrow(dimension, size - 1, 1).add_(right.sum(dimension, keepdim=True))
    return narrow(result, gradient)
