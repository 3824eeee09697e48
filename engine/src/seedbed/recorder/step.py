"""The tensors of a step in a loop of one's own, whatever its parts are made of."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed.data.tensors import tensors_of


def contents(value: Any) -> list[Tensor]:
    """Return the tensors of a batch, in order.

    Arrays count as tensors; numbers, texts and arrays that are no tensors are one more, on the CPU.
    """
    tensors: list[Tensor] = []
    others: list[object] = []

    def visit(value: Any) -> None:
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple) and not hasattr(value, "to"):
            for each in value:
                visit(each)
        elif isinstance(value, np.ndarray | np.generic):
            array = np.array(value, order="C")  # its memory is torch's to read, whatever it was
            try:
                tensors.append(torch.from_numpy(array))
            except (TypeError, ValueError):  # torch has no such numbers, or these are none
                items = array.tolist() if array.dtype == object else array.tobytes()
                others.append((array.dtype.str, array.shape, items))
        elif isinstance(value, bool | int | float | complex | str | bytes | range):
            others.append(value)
        elif value is not None:
            tensors.extend(tensors_of(value))

    visit(value)
    if others:
        digest = hashlib.sha256(repr(others).encode(errors="backslashreplace")).digest()
        tensors.append(torch.tensor(int.from_bytes(digest[:8], "little", signed=True)))
    return tensors


def sample_ids(ids: Any) -> list[Tensor]:
    """Return the ids of samples as tensors: int64 (B,) of numbers, a digest of anything else."""
    if isinstance(ids, range | list | tuple) and all(type(each) is int for each in ids):
        ids = np.array(ids, dtype=np.int64 if max(map(abs, ids), default=0) < 1 << 63 else object)
    return contents(ids)


def named(values: Any, name: str = "") -> dict[str, Any]:
    """Return the values of a mapping, or those of a list by number, or a single one by a name."""
    if isinstance(values, list | tuple):
        values = dict(enumerate(values))
    elif not isinstance(values, Mapping):
        values = {name: values}
    return {str(key): value for key, value in values.items() if value is not None}


def scalars(values: Any, name: str) -> dict[str, Tensor]:
    """Return numbers by name, or a single one by the name given, as copies without dimensions."""
    copies = {}
    for key, value in named(values, name).items():
        is_tensor = isinstance(value, Tensor)
        copy = value.detach().clone() if is_tensor else torch.tensor(value, dtype=torch.float64)
        copies[key] = copy.reshape(())
    return copies


def gradients(networks: Iterable[nn.Module]) -> list[Tensor]:
    """Return the gradient of each parameter that is trained, zeros where it has none."""
    parameters = (p for network in networks for p in network.parameters() if p.requires_grad)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
