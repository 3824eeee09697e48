"""Arguments that PyTorch refuses are refused alike, before anything is computed or
written.

PyTorch's meta function of an operation checks shapes, dtypes and options. What it does
not check, kernels do, with PyTorch's exceptions; or they return NotImplemented, and
PyTorch's own kernel raises. On a GPU, values are checked there, as PyTorch does,
without waiting for them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten


class Layout(NamedTuple):
    """What a meta function sees of a tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def check(operator: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise the exception of PyTorch's meta function, if it refuses the arguments."""
    leaves, spec = tree_flatten((args, kwargs))
    _check(operator, tuple(map(_layout, leaves)), spec)


def _layout(leaf: Any) -> Any:
    return (
        Layout(leaf.shape, leaf.stride(), leaf.dtype)
        if isinstance(leaf, Tensor)
        else leaf
    )


# a model calls an operation with the same layouts in each step
@lru_cache(maxsize=4096)
def _check(
    operator: Callable[..., Any], layouts: tuple[Any, ...], spec: TreeSpec
) -> None:
    leaves = [_on_meta(x) if isinstance(x, Layout) else x for x in layouts]
    args, kwargs = tree_unflatten(leaves, spec)
    try:
        operator(*args, **kwargs)
    except NotImplementedError:  # it has no meta function
        return


def _on_meta(layout: Layout) -> Tensor:
    return torch.empty_strided(
        layout.shape, layout.stride, dtype=layout.dtype, device="meta"
    )


def require(condition: bool, text: str, error: type[Exception] = RuntimeError) -> None:
    """Raise an exception with PyTorch's text for invalid arguments."""
    if not condition:
        raise error(text)


def scalar_type(tensor: Tensor) -> str:
    """Return the name of a dtype in PyTorch's exceptions, such as Float."""
    return tensor.type().rpartition(".")[2].removesuffix("Tensor")


def first_outside(indices: Tensor, low: int, high: int) -> int | None:
    """Return the first index that is below `low`, or not below `high`; None if there is
    none.

    On a GPU it is not known without waiting: an assertion fails there, as in PyTorch's
    kernels.
    """
    is_outside = (indices < low) | (indices >= high)
    if not indices.is_cpu:
        torch._assert_async(~is_outside.any())
        return None
    outside = indices[is_outside]
    return int(outside[0]) if outside.numel() else None


def overlap(written: Tensor, *others: Tensor) -> str | None:
    """Return PyTorch's words on entries that are written twice, or read and written;
    else None."""
    sizes = zip(written.stride(), written.shape, strict=True)
    if any(stride == 0 and size > 1 for stride, size in sizes):
        return (
            "unsupported operation: more than one element of the written-to tensor"
            " refers to a single memory location. Please clone() the tensor before"
            " performing the operation."
        )
    for other in others:
        is_known = all(
            torch.ops.aten.is_non_overlapping_and_dense(x) for x in (written, other)
        )
        if is_known and _share_memory(written, other):
            return (
                "unsupported operation: some elements of the input tensor and the"
                " written-to tensor refer to a single memory location. Please clone()"
                " the tensor before performing the operation."
            )
    return None


def _share_memory(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors, each without gaps, have bytes in common."""
    if not one.numel() or not other.numel():
        return False
    first = one.data_ptr()
    second = other.data_ptr()
    return first < second + other.nbytes and second < first + one.nbytes
