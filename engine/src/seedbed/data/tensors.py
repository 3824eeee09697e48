"""The tensors of a batch, whatever it is made of: to change, to move and to list them."""

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

_WITHOUT_TENSORS = (str, bytes, int, float, complex, type(None), np.ndarray, np.generic)


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to every tensor of a batch.

    Looks into tuples, lists and mappings, and into any other object that can be pickled, such as a
    dataclass, which is copied with the function's tensors in the place of its own.
    """
    return _map(function, value, lambda part: isinstance(part, Tensor))


def move(value: Any, device: torch.device) -> Any:
    """Move a batch to a device: tensors, and whatever has a method `to` of its own by that.

    (A `PackedSequence` leaves its batch sizes on the CPU, for one.)
    """

    def to(part: Any) -> Any:
        return part.to(device, non_blocking=True) if isinstance(part, Tensor) else part.to(device)

    return _map(to, value, _moves_itself)


def tensors_of(value: Any) -> Sequence[Tensor]:
    """Return every tensor of a batch, in order; of a nested tensor, the tensors it consists of."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        found.extend(_parts(tensor) if tensor.is_nested else [tensor])
        return tensor

    map_tensors(note, value)
    return found


def _parts(nested: Any) -> Sequence[Tensor]:
    if nested.layout is not torch.jagged:
        return list(nested.unbind())
    lengths = nested.lengths()
    return [nested.values(), nested.offsets(), *([] if lengths is None else [lengths])]


def _moves_itself(value: Any) -> bool:
    return callable(getattr(value, "to", None))


def _map(function: Callable[[Any], Any], value: Any, is_part: Callable[[Any], bool]) -> Any:
    if is_part(value):
        return function(value)
    if isinstance(value, Mapping) and not _moves_itself(value):
        return {name: _map(function, item, is_part) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(function, item, is_part) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(_map(function, item, is_part) for item in value)
    if isinstance(value, _WITHOUT_TENSORS):
        return value
    return _map_inside(function, value, is_part)


def _map_inside(function: Callable[[Any], Any], value: Any, is_part: Callable[[Any], bool]) -> Any:
    """Copy an object as loader workers send it, with other parts; without any, return it."""
    file = io.BytesIO()
    pickler = _Pickler(file, is_part)
    try:
        pickler.dump(value)
    except (pickle.PicklingError, TypeError, AttributeError):  # no loader worker could send it
        return value
    if not pickler.parts:
        return value
    file.seek(0)
    return _Unpickler(file, [function(part) for part in pickler.parts]).load()


class _Pickler(pickle.Pickler):
    """Pickles an object without its parts, and keeps them."""

    def __init__(self, file: io.BytesIO, is_part: Callable[[Any], bool]) -> None:
        super().__init__(file)
        self.parts: list[Any] = []
        self._is_part = is_part

    def persistent_id(self, value: Any) -> int | None:
        if isinstance(value, type) or not self._is_part(value):
            return None
        self.parts.append(value)
        return len(self.parts) - 1


class _Unpickler(pickle.Unpickler):
    """Puts other parts into what `_Pickler` pickled."""

    def __init__(self, file: io.BytesIO, parts: Sequence[Any]) -> None:
        super().__init__(file)
        self._parts = parts

    def persistent_load(self, place: int) -> Any:
        return self._parts[place]
