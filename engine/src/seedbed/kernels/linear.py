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
# The resizing of images that has a dimension's weights, for each operation.
RESIZING = {
    "upsample_linear1d_backward": aten.upsample_bilinear2d,
    "upsample_bilinear2d_backward": aten.upsample_bilinear2d,
    "upsample_trilinear3d_backward": aten.upsample_bilinear2d,
    "upsample_bicubic2d_backward": aten.upsample_bicubic2d,
    "_upsample_bilinear2d_aa_backward": aten._upsample_bilinear2d_aa,
    "_upsample_bicubic2d_aa_backward": aten._upsample_bicubic2d_aa,
}


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in the precision that sums are computed in."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def narrow(result: Tensor, like: Tensor) -> Tensor:
    """Return a result in the dtype and memory format of another tensor."""
    return result.to(like.dtype).contiguous(memory_format=suggest_memory_format(like))


@lru_cache(maxsize=256)
def _matrix(
    operation: Callable[..., Tensor], size: int, dtype: torch.dtype, device: torch.device, *how: Any
) -> Tensor:
    """Return the matrix (in, out) of a linear operation on images, along their height.

    Its rows are the results for the unit vectors, which are the channels of one image.
    """
    images = torch.eye(size, dtype=dtype, device=device).view(1, size, size, 1)
    return operation(images, *how)[0, :, :, 0].contiguous()


def _transposed(gradient: Tensor, matrices: Sequence[Tensor]) -> Tensor:
    """Multiply the last dimensions of a gradient by transposed matrices (in, out)."""
    result = wide(gradient)
    for dimension, matrix in enumerate(matrices, start=-len(matrices)):
        result = (result.movedim(dimension, -1) @ matrix.T).movedim(-1, dimension)
    return narrow(result, gradient)


def upsample(name: str) -> Callable[..., Tensor]:
    """Return the backward pass of `F.interpolate` with the weights of a mode.

    Formula: https://pytorch.org/docs/stable/generated/torch.nn.functional.interpolate.html
    """

    def backward(
        gradient: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        align_corners: bool,
        *scales: float | None,
    ) -> Tensor:
        sizes, dtype = input_size[2:], wide(gradient).dtype
        if "bicubic" in name:  # whose gradients are contiguous
            gradient = gradient.contiguous()
        if [*sizes] == [*output_size] and "_aa_" not in name:  # copied, whatever the scales
            return gradient.clone()
        # The images are resized from a width of 1 to 2, since those whose size stays are copied.
        matrices = [
            _matrix(RESIZING[name], size, dtype, gradient.device, (out, 2), align_corners, scale)
            for size, out, scale in zip(
                sizes, output_size, scales or [None] * len(sizes), strict=True
            )
        ]
        return _transposed(gradient, matrices)

    return backward


def adaptive_avg_pool(gradient: Tensor, pooled: Tensor, dimensions: int) -> Tensor:
    """Return the gradient of `F.adaptive_avg_pool2d` or `3d` for its input `pooled`."""
    dtype = wide(gradient).dtype
    sizes = zip(pooled.shape[-dimensions:], gradient.shape[-dimensions:], strict=True)
    operation = aten._adaptive_avg_pool2d
    matrices = [_matrix(operation, n, dtype, gradient.device, (out, 1)) for n, out in sizes]
    result = _transposed(gradient, matrices)
    return narrow(result, pooled) if dimensions == 2 else result.contiguous()


def avg_pool3d(
    gradient: Tensor,
    pooled: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """Return the gradient of `F.avg_pool3d` for its input; the counts are products, too."""
    kernel, step, before = (
        [*values] * (3 if len(values) == 1 else 1)
        for values in (kernel_size, stride or kernel_size, padding)
    )
    dtype, divisor = wide(gradient).dtype, None if divisor_override is None else 1
    matrices = [
        _matrix(
            aten.avg_pool2d, size, dtype, gradient.device,
            (kernel[i], 1), (step[i], 1), (before[i], 0), ceil_mode, count_include_pad, divisor,
        )
        for i, size in enumerate(pooled.shape[-3:])
    ]  # fmt: skip
    if divisor_override is not None:
        matrices[0] = matrices[0] / divisor_override
    return _transposed(gradient, matrices)


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
