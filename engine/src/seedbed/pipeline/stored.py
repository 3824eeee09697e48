"""Batches of PyTorch's own data sets of tensors, gathered by index.

Nothing draws while their samples are loaded, so none of them needs a seed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from seedbed.pipeline.positions import Ids

# of dtypes that `index_select` copies, as `stack` does
_DTYPES = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_SEQUENCES = (list, tuple, range, np.ndarray, Tensor)


def _methods_of(owner: type) -> list[Any]:
    """Return what Python looks up in a class when a sample is read."""
    names = ("__getitem__", "__getitems__", "__getattribute__", "__getattr__")
    return [getattr(owner, name, None) for name in names]


_METHODS: dict[type, list[Any]] = {
    kind: _methods_of(kind) for kind in (TensorDataset, Subset, ConcatDataset)
}


def gathered(dataset: Any, ids: Ids) -> list[Tensor] | None:
    """Return the batch that `default_collate` makes of the samples of a data set.

    None if a class of the user's takes part, or a tensor whose rows `default_collate`
    may lay out in another way: then the samples have to be loaded one by one.
    """
    if _is_read_as(TensorDataset, dataset, ("tensors",)):
        return _rows_of(dataset.tensors, ids)
    if _is_read_as(Subset, dataset, ("dataset", "indices")):
        chosen = _chosen(dataset.indices, ids)
        return None if chosen is None else gathered(dataset.dataset, chosen)
    if _is_read_as(ConcatDataset, dataset, ("datasets", "cumulative_sizes")):
        return _joined(dataset, ids)
    return None


def _is_read_as(kind: type, dataset: Any, attributes: Sequence[str]) -> bool:
    """Return whether PyTorch's own code alone makes a sample: a method or property of
    the user's may draw."""
    owner = type(dataset)
    return (
        isinstance(dataset, kind)
        and _methods_of(owner) == _METHODS[kind]  # as when this module was imported
        and (owner is kind or not any(hasattr(owner, name) for name in attributes))
    )


def _rows_of(tensors: Sequence[Tensor], ids: Ids) -> list[Tensor] | None:
    if not all(map(_is_plain, tensors)):
        return None
    index = torch.from_numpy(ids)
    try:
        return [tensor.index_select(0, index) for tensor in tensors]
    except IndexError:  # also for those that count from the end
        return None


def _is_plain(tensor: Any) -> bool:
    """Return whether rows of a tensor, stacked, have the same bits and strides as
    copied."""
    return (
        type(tensor) is Tensor
        and tensor.dtype in _DTYPES
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.requires_grad
    )


def _chosen(indices: Any, ids: Ids) -> Ids | None:
    """Return the indices of a subset at some positions; None if they are not plain
    integers."""
    if type(indices) not in _SEQUENCES or not 0 <= ids.min() <= ids.max() < len(
        indices
    ):
        return None
    values = [indices[position] for position in ids.tolist()]
    chosen = np.asarray(values)
    has_flags = any(type(value) is bool for value in values)  # which count as numbers
    if has_flags or chosen.dtype.kind not in "iu" or chosen.ndim != 1:
        return None
    return chosen.astype(np.int64)


def _joined(dataset: ConcatDataset[Any], ids: Ids) -> list[Tensor] | None:
    """Return rows of several data sets, in the order of the ids."""
    ends = np.asarray(dataset.cumulative_sizes)
    if not 0 <= ids.min() <= ids.max() < ends[-1]:
        return None
    members = np.searchsorted(ends, ids, side="right")
    parts: list[list[Tensor]] = []
    positions: list[Ids] = []
    for member in np.unique(members).tolist():
        positions_in_member = np.flatnonzero(members == member)
        start = ends[member - 1] if member else 0
        part = gathered(dataset.datasets[member], ids[positions_in_member] - start)
        if part is None:
            return None
        parts.append(part)
        positions.append(positions_in_member)
    if len(parts) == 1:
        return parts[0]
    layouts = {tuple((each.dtype, each.shape[1:]) for each in part) for part in parts}
    if len(layouts) > 1:  # `default_collate` refuses them, or promotes dtypes
        return None
    order = torch.from_numpy(np.argsort(np.concatenate(positions)))
    columns = zip(*parts, strict=True)
    return [torch.cat(column).index_select(0, order) for column in columns]
