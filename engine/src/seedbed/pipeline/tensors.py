"""Mapping, moving and listing the tensors of a batch of any structure."""

import copy
import dataclasses
import enum
import io
import pickle
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedbed import fingerprint

_WITHOUT_TENSORS = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a batch of tuples, lists and mappings with a function's results for its
    tensors.

    Any other object that can be pickled, such as a dataclass, is copied with other
    tensors.
    """
    return _map(function, value, lambda part: isinstance(part, Tensor))


def move(value: Any, device: torch.device, then: Callable[[Tensor], Tensor]) -> Any:
    """Move a batch, and map its tensors; objects with a method `to`, as
    `PackedSequence`, by it."""

    def to(part: Any) -> Any:
        if isinstance(part, Tensor):
            return then(part.to(device, non_blocking=True))
        return map_tensors(then, part.to(device))

    return _map(to, value, lambda part: callable(getattr(part, "to", None)))


def tensors_of(value: Any) -> Sequence[Tensor]:
    """Return every tensor of a batch, in order; for a nested tensor, its component
    tensors."""
    tensors: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if not tensor.is_nested:
            tensors.append(tensor)
        elif tensor.layout is torch.jagged:
            parts = (tensor.values(), tensor.offsets(), tensor.lengths())  # type: ignore[attr-defined]
            tensors.extend(part for part in parts if part is not None)
        else:
            tensors.extend(tensor.unbind())
        return tensor

    map_tensors(note, value)
    return tensors


def contents(value: Any) -> list[Tensor]:
    """Return the tensors of a batch, in order; arrays and images count as tensors.

    Numbers, strings, arrays that torch cannot hold and others are hashed into one more
    on the CPU.
    """
    tensors: list[Tensor] = []
    others: list[object] = []
    for leaf in _leaves(value):
        if isinstance(leaf, Tensor):
            tensors.extend(tensors_of(leaf) if leaf.is_nested else [leaf])
        elif isinstance(leaf, np.ndarray | np.generic):
            array = np.array(leaf, order="C")  # a copy, in memory that torch can read
            try:
                tensors.append(torch.from_numpy(array))
            except (TypeError, ValueError):  # no dtype of torch, or not numbers
                items = array.tolist() if array.dtype == object else array.tobytes()
                others.append((array.dtype.str, array.shape, items))
        elif isinstance(leaf, bool | int | float | complex | str | bytes | range):
            others.append(leaf)
        elif leaf is not None:
            tensors_of_leaf = tensors_of(leaf)
            tensors.extend(tensors_of_leaf)
            others.extend([] if tensors_of_leaf else [as_text(leaf)])
    return [*tensors, fingerprint.of_objects(others)] if others else tensors


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what is in nested containers, in order; of other objects, themselves."""
    if not isinstance(value, Tensor):
        value = _unpacked(value)
    if isinstance(value, list | tuple) and not hasattr(value, "to"):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _unpacked(value: Any) -> Any:
    """Return the items of a container as a list, and what is an array in other classes
    as one of NumPy."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if dataclasses.is_dataclass(value) and not hasattr(value, "to"):
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    if hasattr(value, "__array_interface__") or hasattr(value, "__dataframe__"):
        return np.asarray(value)  # e.g. a PIL image, a pandas table
    return value


def as_text(value: Any) -> str:
    """Return any value as a string that YAML can hold: no memory address, no
    interpolation."""
    if isinstance(value, Tensor | np.ndarray):
        bits = fingerprint.text(int(fingerprint.of_tensors(contents(value))))
        return (
            f"{type(value).__name__} {tuple(value.shape)} {value.dtype}, fingerprint"
            f" {bits}"
        )
    if isinstance(value, enum.Enum):
        text = value.name
    elif isinstance(value, str | PurePath | torch.dtype | torch.device):
        text = repr(value) if value == "???" else str(value)
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        text = f"{value.__module__}.{value.__qualname__}"
    else:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    # YAML has no lone surrogates
    text = text.encode(errors="backslashreplace").decode()
    return text.replace("${", "$ {")


def _map(
    function: Callable[[Any], Any], value: Any, is_part: Callable[[Any], bool]
) -> Any:
    if is_part(value):
        return function(value)
    if isinstance(value, Mapping) and not hasattr(value, "to"):
        return {name: _map(function, item, is_part) for name, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_map(function, item, is_part) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, _WITHOUT_TENSORS):
        return value
    # An object of any other class is copied; pickling finds its parts, as for a loader
    # worker.
    finder = _Finder(io.BytesIO())
    finder.is_part = is_part
    finder.parts = []
    try:
        finder.dump(value)
    # no loader worker could send it
    except (pickle.PicklingError, TypeError, AttributeError):
        return value
    changed = {id(part): function(part) for part in finder.parts}
    return copy.deepcopy(value, changed) if changed else value


class _Finder(pickle.Pickler):
    """Pickler that collects the parts of an object instead of pickling them."""

    is_part: Callable[[Any], bool]
    parts: list[Any]

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, type) or not self.is_part(value):
            return None
        self.parts.append(value)
        return "part"
