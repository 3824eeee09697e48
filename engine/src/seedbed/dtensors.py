"""Tensors whose rows processes share, PyTorch's DTensors: what each process holds, and
the whole.

Only `distributed.sharding` makes them, as FSDP2 does: process r of n has the rows r * k
to (r + 1) * k of a tensor, with k = ceil(rows / n), and the last ones may have fewer or
none. What is said to be for all processes exchanges data: each has to call it, in the
same order.
"""

import mmap
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map


def is_sharded(value: object) -> bool:
    return hasattr(type(value), "to_local")  # without an import that takes a second


def first_of(values: Iterable[Any]) -> Any:
    """Return the first sharded tensor; None if there is none."""
    several = list(values)
    if not any(hasattr(kind, "to_local") for kind in set(map(type, several))):
        return None
    return next(value for value in several if is_sharded(value))


def rank_of(tensor: Any) -> int:
    return int(tensor.device_mesh.get_local_rank())


def local(tensor: Any) -> Tensor:
    """Return the rows of this process, without their graph; any other tensor as it
    is."""
    rows: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor
    return rows


def rows_of(tensor: Any) -> tuple[int, int]:
    """Return the first row of this process, and the one after its last."""
    rows = len(tensor)
    size = -(-rows // tensor.device_mesh.size())
    start = min(rank_of(tensor) * size, rows)
    return start, min(start + size, rows)


def gathered(nest: Any, folder: Path | None = None) -> Any:
    """Return a nest with whole tensors, on rank 0's CPU and empty elsewhere; for all
    processes.

    They are gathered one after the other, so that a device holds one at a time, and so
    does main memory if there is a `folder`, for files without names. Those of one
    memory, such as tied weights, stay one tensor.
    """
    sharded = [value for value in tree_leaves(nest) if is_sharded(value)]
    made: list[Tensor] = []
    for number, first in enumerate(_first_of_memory(sharded)):
        if first != number:
            made.append(made[first])
            continue
        full = sharded[number].detach().full_tensor()
        if rank_of(sharded[number]):
            made.append(full.new_empty(0))
        else:
            made.append(full.cpu() if folder is None else _in_file(full, folder))
    tensors = iter(made)
    return tree_map(lambda value: next(tensors) if is_sharded(value) else value, nest)


def _first_of_memory(sharded: Sequence[Any]) -> list[int]:
    """Return for each tensor the number of the first one that is the same rows of one
    memory.

    Rank 0, which has rows of every tensor that has any, decides it for all processes.
    """
    if not sharded:
        return []
    numbers: dict[tuple[object, ...], int] = {}
    firsts = list[int]()
    for number, value in enumerate(sharded):
        rows = local(value)
        memory = rows.untyped_storage().data_ptr(), rows.storage_offset()
        layout = value.dtype, value.shape, rows.stride()
        # Without memory, nothing is shared.
        key = (*memory, *layout) if memory[0] else (number,)
        firsts.append(numbers.setdefault(key, number))
    decided = torch.tensor(firsts, device=sharded[0].device)
    group = sharded[0].device_mesh.get_group()
    torch.distributed.broadcast(decided, group=group, group_src=0)
    return [int(first) for first in decided.tolist()]


def _in_file(tensor: Tensor, folder: Path) -> Tensor:
    """Return a copy on the CPU, in a file that goes with it; its pages can leave main
    memory."""
    storage = tensor.untyped_storage()
    if not storage.nbytes():
        return tensor.cpu()
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(storage.nbytes())
        # an error now if the disk is full; macOS lacks it
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, storage.nbytes())
        memory = mmap.mmap(file.fileno(), storage.nbytes())
    copy = torch.frombuffer(memory, dtype=tensor.dtype)
    copy = copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return copy.copy_(tensor)


def like(value: Any, tensor: Any) -> Any:
    """Return this process's rows of a whole tensor, sharded as another one of the same
    shape.

    Anything else, and what is not of that shape, is returned as it is.
    """
    fits = (
        isinstance(value, Tensor)
        and not is_sharded(value)
        and value.shape == tensor.shape
    )
    if not (is_sharded(tensor) and fits):
        return value
    from torch.distributed.tensor import DTensor

    start, stop = rows_of(tensor)
    rows = value[start:stop].to(tensor.device, copy=True).contiguous()
    mesh = tensor.device_mesh
    placements = tensor.placements
    where = {"shape": tensor.shape, "stride": tensor.stride(), "run_check": False}
    return DTensor.from_local(rows, mesh, placements, **where)
