"""Operations that add, multiply or write values at indices, in a fixed order.

PyTorch's CUDA kernels for them use atomic operations. `index_put` sorts the indices
under deterministic algorithms, and so adds, or overwrites, in the order of the values.
A kernel returns NotImplemented for arguments with which PyTorch's own is right.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import canonicalize_dim

from torch_deterministic_kernels.checks import (
    first_outside,
    overlap,
    require,
    scalar_type,
)
from torch_deterministic_kernels.precision import narrow, wide

_INDICES = (torch.int32, torch.int64)
# without a median in PyTorch
_UNORDERED = (torch.bool, torch.uint16, torch.uint32, torch.uint64)


def add_at(rows: int, index: Tensor, values: Tensor) -> Tensor:
    """Return zeros of shape (rows, *values.shape[1:]) with each value added at its
    index."""
    result = torch.zeros(
        rows, *values.shape[1:], dtype=values.dtype, device=values.device
    )
    return result.index_put_((index,), values, accumulate=True)


def _in_planes(indices: Tensor, plane: int, dimensions: int) -> Tensor:
    """Return indices into each plane of some dimensions as indices into all planes,
    flattened."""
    outer = prod(indices.shape[:-dimensions])
    first = torch.arange(outer, device=indices.device) * plane
    inner = indices.reshape(outer, prod(indices.shape[-dimensions:])).long()
    return (inner + first[:, None]).flatten()


def max_pool(
    gradient: Tensor,
    pooled: Tensor,
    *args: Any,
    dimensions: int,
    keeps_format: bool = False,
) -> Tensor:
    """Return the gradient of a max pool for its input `pooled`: the sum at each
    maximum.

    The last argument has the indices of the maxima.
    """
    places = _in_planes(args[-1], prod(pooled.shape[-dimensions:]), dimensions)
    result = add_at(pooled.numel(), places, wide(gradient).flatten())
    result = result.view(pooled.shape)
    return narrow(result, pooled) if keeps_format else result.to(pooled.dtype)


def max_unpool(
    values: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    *options: Sequence[int],
    dimensions: int,
) -> Tensor:
    """Return zeros with each value at its index in its plane; the last of several
    counts."""
    plane = prod(output_size)
    _require_unpoolable(values, indices, output_size, dimensions, options)
    result = values.new_zeros([*values.shape[:-dimensions], *output_size])
    if not result.numel():
        return result
    outside = first_outside(indices, 0, plane)
    volume = "x".join(map(str, output_size))
    text = (
        f"Found an invalid max index: {outside} (output volumes are of size {volume})"
    )
    require(outside is None, text)
    places = _in_planes(indices, plane, dimensions)
    result.view(-1).index_put_((places,), values.flatten())
    return narrow(result, values) if dimensions == 2 and values.is_cpu else result


def _require_unpoolable(
    values: Tensor,
    indices: Tensor,
    output_size: Sequence[int],
    dimensions: int,
    options: Sequence[Sequence[int]],
) -> None:
    is_long = indices.dtype == torch.int64
    require(
        is_long,
        f"elements in indices should be type int64 but got: {scalar_type(indices)}",
    )
    axes = "two elements (height, width)", "three elements (depth, height, width)"
    for name, sizes in zip(
        ("output_size", "stride", "padding"), (output_size, *options), strict=False
    ):
        text = f"There should be exactly {axes[dimensions - 2]} in {name}, but got"
        colon = "" if name == "output_size" else ":"
        require(len(sizes) == dimensions, f"{text}{colon} {len(sizes)} elements.")
    name = f"max_unpooling{dimensions}d"
    ranks = f"{dimensions + 1}d or {dimensions + 2}d"
    require(
        values.dim() in (dimensions + 1, dimensions + 2),
        f"Input to {name} should be a {ranks} Tensor, but got a tensor with"
        f" {values.dim()} dimensions.",
    )
    stride = [*options[0]] if options else [1]
    require(
        min(stride) > 0,
        f"strides should be greater than zero, but got stride: {stride}",
    )
    shape = [*values.shape]
    require(
        values.shape == indices.shape,
        f"Expected shape of indices to be same as that of the input tensor ({shape})"
        f" but got indices tensor with shape: {[*indices.shape]}",
    )
    for axis, size in enumerate(shape[1:], 1):
        require(
            size > 0,
            f"{name}_forward_out_{values.device.type}(): Expected input to have"
            f" non-zero size for non-batch dimensions, but input has sizes {shape} with"
            f" dimension {axis} being empty",
        )
    text = f"\"max_unpool{dimensions}d\" not implemented for '{scalar_type(values)}'"
    require(values.is_floating_point(), text, NotImplementedError)


def put(
    target: Tensor, index: Tensor, source: Tensor, accumulate: bool = False
) -> Tensor:
    """Write to, or add to, the entries of a tensor as if it were flat; the last value
    counts."""
    require(
        index.dtype == torch.int64,
        f"put_(): Expected a long tensor for index, but got {scalar_type(index)}",
    )
    require(
        target.dtype == source.dtype,
        "put_(): self and source expected to have the same dtype, but got self.dtype = "
        f"{scalar_type(target)} and source.dtype = {scalar_type(source)}",
    )
    count = index.numel()
    size = target.numel()
    require(
        count == source.numel(),
        "put_(): Expected source and index to have the same number of elements, but"
        f" got source.numel() = {source.numel()}, index.numel() = {count}",
        IndexError,
    )
    shared = overlap(target, index, source)
    require(shared is None, str(shared))
    is_empty = count > 0 and size == 0
    require(
        not is_empty, "put_(): Tried to put elements into an empty tensor", IndexError
    )
    outside = first_outside(index, -size, size)
    text = (
        f"out of range: tried to access index {outside} on a tensor of {size} elements."
    )
    require(outside is None, text, IndexError)
    flat = target.reshape(-1)  # a copy, unless it is contiguous
    flat.index_put_((index.reshape(-1),), source.reshape(-1), accumulate)
    return target if target.is_contiguous() else target.copy_(flat.view(target.shape))


def embedding_bag(
    gradient: Tensor,
    indices: Tensor,
    offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    *_: Any,
) -> Any:
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
    is_integral = not values.dtype.is_floating_point and not values.dtype.is_complex
    if weights is None or not is_integral or values.dtype == torch.bool:
        return NotImplemented
    require(minlength >= 0, "minlength should be >= 0")
    if values.dim() == 1 and not values.numel():
        return values.new_zeros(minlength, dtype=torch.int64)
    is_counted = values.dim() == 1 and int(values.min()) >= 0
    require(is_counted, "bincount only supports 1-d non-negative integral inputs.")
    is_weighed = values.shape == weights.shape
    require(is_weighed, "weights should be 1-d and have the same length as input")
    weights = weights if weights.dtype == torch.float32 else weights.double()
    return add_at(max(int(values.max()) + 1, minlength), values.long(), weights)


def histc(values: Tensor, bins: int = 100, low: float = 0, high: float = 0) -> Any:
    """Return the numbers of values in bins of equal width, which are counted as
    integers."""
    dtype = values.dtype
    if dtype not in (torch.float32, torch.float64):
        return NotImplemented
    require(
        bins > 0, f"torch.histogram(): bins must be > 0, but got {bins} for dimension 0"
    )
    require(not low > high, "torch.histc: max must be larger than min")
    start = values.new_tensor(low)
    end = values.new_tensor(high)
    if low == high and values.numel():
        start, end = values.aminmax()
    is_finite = bool(start.isfinite() & end.isfinite())
    require(is_finite, f"torch.histc: range of [{start:g}, {end:g}] is not finite")
    if start == end:  # by 1 to both sides, or to the next numbers
        start = torch.minimum(start - 1, start.nextafter(start.new_tensor(-torch.inf)))
        end = torch.maximum(end + 1, end.nextafter(end.new_tensor(torch.inf)))
    if not (end - start).isfinite():  # from the least to the largest numbers
        values = values.double()
        start = start.double()
        end = end.double()
    inside = values[(values >= start) & (values <= end)]
    bin_of = ((inside - start) * bins / (end - start)).long().clamp(0, bins - 1)
    return bin_of.bincount(minlength=bins).to(dtype)


def _reduced(
    target: Tensor, index: Tensor, source: Tensor, reduce: str, with_self: bool
) -> Tensor:
    """Return rows of `target` reduced with the rows of `source` that have their index.

    Rows are sorted by index, and those of one index reduced in their order.
    """
    rows = torch.arange(len(target) + 1, device=index.device)
    placed, order = index.sort(stable=True)
    ends = torch.searchsorted(placed, rows)
    kind = {"mean": "sum", "amax": "max", "amin": "min"}.get(reduce, reduce)
    values = torch.segment_reduce(
        wide(source)[order], kind, offsets=ends, axis=0, unsafe=True
    )
    count = ends.diff().view(-1, *[1] * (target.dim() - 1))
    own = wide(target)
    if not with_self:
        merged = values / count if reduce == "mean" else values
    elif reduce == "mean":
        merged = (own + values) / (count + 1)
    else:
        merge = {"prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}[
            reduce
        ]
        merged = merge(own, values)
    return torch.where(count > 0, merged, own).to(target.dtype)


def index_reduce(
    target: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    include_self: bool = True,
) -> Any:
    """Return a tensor with slices of another reduced into it, of floating-point
    numbers."""
    dim = canonicalize_dim(target.dim(), dim)
    rows, values = (
        x.movedim(dim, 0) if x.dim() else x.view(1) for x in (target, source)
    )
    is_valid = (
        index.dim() <= 1
        and index.dtype in _INDICES
        and index.numel() == len(values)
        and target.dtype == source.dtype
        and target.dim() == source.dim()
        and rows.shape[1:] == values.shape[1:]
        and reduce in ("prod", "mean", "amax", "amin")
    )
    if not is_valid or not target.is_floating_point():
        return NotImplemented
    if first_outside(index, 0, len(rows)) is not None:
        return NotImplemented
    if not source.numel():
        return target.clone()
    result = _reduced(rows, index.reshape(-1).long(), values, reduce, include_self)
    return result.movedim(0, dim).contiguous() if target.dim() else result.view(())


def scatter_reduce(
    target: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    reduce: str,
    include_self: bool = True,
) -> Any:
    """Return a tensor with values multiplied into it."""
    is_product = reduce in ("prod", "multiply") and target.is_floating_point()
    if not is_product or index.dtype not in _INDICES or target.dtype != source.dtype:
        return NotImplemented
    dim = canonicalize_dim(target.dim(), dim)
    if not index.numel():
        return target.clone()
    own, index, source = (x if x.dim() else x.view(1) for x in (target, index, source))
    if not own.dim() == index.dim() == source.dim():
        return NotImplemented
    for axis, size in enumerate(index.shape):
        if size > source.shape[axis] or (axis != dim and size > own.shape[axis]):
            return NotImplemented
    if first_outside(index, 0, own.shape[dim]) is not None:
        return NotImplemented
    places = torch.zeros_like(index, dtype=torch.int64)
    for axis, size in enumerate(index.shape):
        shape = [-1 if other == axis else 1 for other in range(index.dim())]
        along = torch.arange(size, device=index.device).view(shape)
        places += (index.long() if axis == dim else along) * prod(own.shape[axis + 1 :])
    values = source[tuple(map(slice, index.shape))]
    flat = own.reshape(-1), places.flatten(), values.flatten()
    return _reduced(*flat, "prod", include_self).view(target.shape)


def in_place(
    function: Callable[..., Any],
    target: Tensor,
    dim: int,
    index: Tensor,
    source: Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Write the result of a function of tensors to the first of them."""
    if overlap(target, index, source):
        return NotImplemented
    result = function(target, dim, index, source, *args, **kwargs)
    return result if result is NotImplemented else target.copy_(result)


def median(
    values: Tensor, dim: int, keepdim: bool = False, ignores_nan: bool = False
) -> Any:
    """Return the lower median along a dimension, and an index of it.

    NaN is the median if there is one, unless it is ignored. Values are sorted stably,
    NaN last.
    """
    if values.dtype.is_complex or values.dtype in _UNORDERED:
        return NotImplemented
    dim = canonicalize_dim(values.dim(), dim)
    if not values.dim():
        return values.clone(), torch.zeros_like(values, dtype=torch.int64)
    size = values.shape[dim]
    text = f"median(): Expected reduction dim {dim} to have non-zero size."
    require(size > 0, text, IndexError)
    placed, order = values.sort(dim=dim, stable=True)
    nans = values.isnan().sum(dim, keepdim=True)
    if ignores_nan:
        rank = ((size - nans - 1) // 2).clamp(min=0)
    else:
        rank = torch.where(nans > 0, size - nans, (size - 1) // 2)
    found = [tensor.gather(dim, rank) for tensor in (placed, order)]
    return tuple(tensor if keepdim else tensor.squeeze(dim) for tensor in found)
