"""Operations that add, multiply or write values at indices, in a fixed order.

PyTorch's CUDA kernels for them use atomic operations. `index_put` sorts the indices under
deterministic algorithms, and so adds, or overwrites, in the order of the values. A kernel returns
NotImplemented for arguments with which PyTorch's own is right.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from torch_deterministic_kernels.precision import narrow, wide


def require(condition: bool) -> None:
    """Raise an exception for invalid arguments; PyTorch's own kernel raises one that says why."""
    if not condition:
        raise ValueError("invalid arguments")


def add_at(rows: int, index: Tensor, values: Tensor) -> Tensor:
    """Return zeros of shape (rows, *values.shape[1:]) with each value added at its index."""
    result = torch.zeros(rows, *values.shape[1:], dtype=values.dtype, device=values.device)
    return result.index_put_((index,), values, accumulate=True)


def _in_planes(indices: Tensor, plane: int, dimensions: int) -> Tensor:
    """Return indices into each plane of some dimensions as indices into all planes, flattened."""
    outer = prod(indices.shape[:-dimensions])
    first = torch.arange(outer, device=indices.device) * plane
    inner = indices.reshape(outer, prod(indices.shape[-dimensions:])).long()
    return (inner + first[:, None]).flatten()


def max_pool(
    gradient: Tensor, pooled: Tensor, *args: Any, dimensions: int, keeps_format: bool = False
) -> Tensor:
    """Return the gradient of a max pool for its input `pooled`: the sum at each maximum.

    The last argument has the indices of the maxima.
    """
    places = _in_planes(args[-1], prod(pooled.shape[-dimensions:]), dimensions)
    result = add_at(pooled.numel(), places, wide(gradient).flatten())
    result = result.view(pooled.shape)
    return narrow(result, pooled) if keeps_format else result.to(pooled.dtype)


def max_unpool(values: Tensor, indices: Tensor, output_size: Sequence[int], *_: Any) -> Tensor:
    """Return zeros with each value at its index in its plane; the last of several counts."""
    dimensions, plane = len(output_size), prod(output_size)
    require(indices.dtype == torch.int64 and indices.shape == values.shape)
    require(values.dim() in (dimensions + 1, dimensions + 2) and 0 not in values.shape[1:])
    torch._assert_async(((indices >= 0) & (indices < plane)).all())
    result = values.new_zeros([*values.shape[:-dimensions], *output_size])
    places = _in_planes(indices, plane, dimensions)
    result.view(-1).index_put_((places,), values.flatten())
    return narrow(result, values) if dimensions == 2 and values.is_cpu else result


def put(target: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """Write to, or add to, the entries of a tensor as if it were flat; the last value counts."""
    require(index.dtype == torch.int64 and index.numel() == source.numel())
    require(target.dtype == source.dtype)
    dimensions = zip(target.stride(), target.shape, strict=True)
    require(not any(stride == 0 and size > 1 for stride, size in dimensions))  # overlapping entries
    flat = target.reshape(-1)  # a copy, unless it is contiguous
    flat.index_put_((index.reshape(-1),), source.reshape(-1), accumulate)
    return target if target.is_contiguous() else target.copy_(flat.view(target.shape))


def embedding_bag(
    gradient: Tensor, indices: Tensor, offset2bag: Tensor, bag_size: Tensor,
    maximum_indices: Tensor, num_weights: int, scale_grad_by_freq: bool, mode: int, *_: Any,
) -> Any:  # fmt: skip
    """Return the gradient of `F.embedding_bag` for its weights, for mode max."""
    if mode != 2:
        return NotImplemented
    bags, width = maximum_indices.shape
    is_filled = bag_size[:bags] > 0  # on a GPU, there may be a last offset's size
    is_filled = is_filled[:, None] & (maximum_indices >= 0)
    column = torch.arange(width, device=gradient.device)
    places = maximum_indices.long().clamp(min=0) * width + column
    values = torch.where(is_filled, wide(gradient), 0)
    result = add_at(num_weights * width, places.flatten(), values.flatten())
    return result.view(num_weights, width).to(gradient.dtype)


def bincount(values: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Any:
    """Return the sum of the weights of each value."""
    if weights is None or not values.numel():
        return NotImplemented
    require(values.dim() == 1 and values.shape == weights.shape and int(values.min()) >= 0)
    require(not values.is_floating_point() and minlength >= 0)
    weights = weights if weights.dtype == torch.float32 else weights.double()
    return add_at(max(int(values.max()) + 1, minlength), values.long(), weights)


def histc(values: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Return the numbers of values in bins of equal width, which are counted as integers."""
    if values.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    require(bins > 0 and low <= high)
    start, end = values.new_tensor(low), values.new_tensor(high)
    if low == high and values.numel():
        start, end = values.min(), values.max()
    one = torch.where(start == end, 1, 0)
    start, end = start - one, end + one
    require(bool(start.isfinite() & end.isfinite()))
    inside = values[(values >= start) & (values <= end)]
    bin_of = ((inside - start) * bins / (end - start)).long().clamp(0, bins - 1)
    return bin_of.bincount(minlength=bins).to(values.dtype)


def _reduced(target: Tensor, index: Tensor, source: Tensor, reduce: str, with_self: bool) -> Tensor:
    """Return rows of `target` reduced with the rows of `source` that have their index.

    Rows are sorted by index, and those of one index reduced in their order.
    """
    rows = torch.arange(len(target) + 1, device=index.device)
    placed, order = index.sort(stable=True)
    ends = torch.searchsorted(placed, rows)
    kind = {"mean": "sum", "amax": "max", "amin": "min"}.get(reduce, reduce)
    values = torch.segment_reduce(wide(source)[order], kind, offsets=ends, axis=0, unsafe=True)
    count = ends.diff().view(-1, *[1] * (target.dim() - 1))
    own = wide(target)
    if not with_self:
        merged = values / count if reduce == "mean" else values
    elif reduce == "mean":
        merged = (own + values) / (count + 1)
    else:
        merge = {"prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}[reduce]
        merged = merge(own, values)
    return torch.where(count > 0, merged, own).to(target.dtype)


def index_reduce(
    target: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Any:
    """Return a tensor with slices of another reduced into it, of floating-point numbers."""
    require(index.dim() <= 1 and target.dtype == source.dtype and target.dim() == source.dim())
    if not target.is_floating_point() or not source.numel() or not target.dim():
        return NotImplemented
    require(reduce in ("prod", "mean", "amax", "amin") and index.numel() == source.shape[dim])
    torch._assert_async(((index >= 0) & (index < target.shape[dim])).all())
    rows, values = target.movedim(dim, 0), source.movedim(dim, 0)
    require(rows.shape[1:] == values.shape[1:])
    result = _reduced(rows, index.reshape(-1).long(), values, reduce, include_self)
    return result.movedim(0, dim).contiguous()


def scatter_reduce(
    target: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, include_self: bool = True
) -> Any:
    """Return a tensor with values multiplied into it."""
    is_product = reduce in ("prod", "multiply") and target.is_floating_point()
    if not is_product or not index.numel() or not target.dim():
        return NotImplemented
    dim = range(target.dim())[dim]
    require(target.dim() == index.dim() == source.dim() and target.dtype == source.dtype)
    for axis in range(target.dim()):
        require(index.shape[axis] <= source.shape[axis])
        require(axis == dim or index.shape[axis] <= target.shape[axis])
    torch._assert_async(((index >= 0) & (index < target.shape[dim])).all())
    places = torch.zeros_like(index, dtype=torch.int64)
    for axis, size in enumerate(index.shape):
        shape = [-1 if other == axis else 1 for other in range(index.dim())]
        along = torch.arange(size, device=index.device).view(shape)
        places += (index.long() if axis == dim else along) * prod(target.shape[axis + 1 :])
    values = source[tuple(map(slice, index.shape))]
    flat = target.reshape(-1), places.flatten(), values.flatten()
    return _reduced(*flat, "prod", include_self).view(target.shape)


def in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel for the form of an operation that writes to its first tensor."""

    def written(target: Tensor, *args: Any, **kwargs: Any) -> Any:
        result = function(target, *args, **kwargs)
        return result if result is NotImplemented else target.copy_(result)

    return written


def median(values: Tensor, dim: int, keepdim: bool = False, ignores_nan: bool = False) -> Any:
    """Return the lower median along a dimension, and an index of it.

    NaN is the median if there is one, unless it is ignored. Values are sorted stably, NaN last.
    """
    if not values.dim():
        return values.clone(), torch.zeros_like(values, dtype=torch.int64)
    size = values.shape[dim]
    require(size > 0)
    placed, order = values.sort(dim=dim, stable=True)
    nans = values.isnan().sum(dim, keepdim=True)
    if ignores_nan:
        rank = ((size - nans - 1) // 2).clamp(min=0)
    else:
        rank = torch.where(nans > 0, size - nans, (size - 1) // 2)
    found = [tensor.gather(dim, rank) for tensor in (placed, order)]
    return tuple(tensor if keepdim else tensor.squeeze(dim) for tensor in found)
