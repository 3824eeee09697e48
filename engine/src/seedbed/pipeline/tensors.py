"""Nests of tensors, such as a batch: mapping, moving and listing what is in them."""

import copy
import copyreg
import dataclasses
import enum
import re
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedbed import fingerprint
from seedbed.errors import InputError, one_line

_WITHOUT_TENSORS = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic)
# What copies share with the original.
_NEVER_COPIED = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    weakref.ref,
)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Return a batch of tuples, lists and mappings with a function's results for its
    tensors.

    Any other object, such as a dataclass, is copied with other tensors. (PyTorch's
    pytree would not do: a class may leave out fields where it is registered.)

    Raises:
        InputError: an object whose contents cannot be found.
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
    """Return a nest with a function's results for its parts."""
    if is_part(value):
        return function(value)
    if isinstance(value, Mapping) and not hasattr(value, "to"):
        return {name: _map(function, item, is_part) for name, item in value.items()}
    if type(value) is list:
        return [_map(function, item, is_part) for item in value]
    if isinstance(value, tuple) and type(value) is not torch.Size:
        items = [_map(function, item, is_part) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, _WITHOUT_TENSORS):
        return value
    changed = {id(part): function(part) for part in _parts_of(value, is_part)}
    return copy.deepcopy(value, changed) if changed else value


def _parts_of(value: Any, is_part: Callable[[Any], bool]) -> list[Any]:
    """Return the parts in an object of any class, where `copy.deepcopy` would look for
    them; in order, each as often as it occurs."""
    parts: list[Any] = []
    seen: dict[int, Any] = {}

    def walk(item: Any) -> None:
        if is_part(item) and not isinstance(item, type):
            parts.append(item)
            return
        if isinstance(item, (*_WITHOUT_TENSORS, *_NEVER_COPIED)) or id(item) in seen:
            return
        seen[id(item)] = item  # so that no other object gets its id
        if type(item) in (list, tuple, set, frozenset):
            for each in item:
                walk(each)
        elif type(item) is dict:
            for each in item.items():
                walk(each)
        else:
            for each in _state_of(item):
                walk(each)

    walk(value)
    return parts


def _state_of(value: Any) -> list[Any]:
    """Return what an object is copied from: arguments of its class, items,
    attributes."""
    reduce = copyreg.dispatch_table.get(type(value))
    try:
        reduced = reduce(value) if reduce else value.__reduce_ex__(4)
        if isinstance(reduced, str):  # the name of a global
            return []
        _, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
        return [arguments, list(items or ()), list(pairs or ()), state]
    except Exception as error:
        raise InputError(
            "batch: expected contents that can be copied and hashed, got a"
            f" {type(value).__name__} ({one_line(error)}); leave it out of batches"
        ) from error
