"""How a batch is loaded, noted like operations: order, samples, transforms, collate."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import CodeType
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from seedbed import rng
from seedbed.data.source import Source
from seedbed.operations.place import Place
from seedbed.operations.trace import Event, hashes

ORDER, LOADING, AUGMENTATION, COLLATE = "order", "loading", "augmentation", "collate"
DATA_PHASES = (ORDER, LOADING, AUGMENTATION, COLLATE)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), rng.Draws)
_CONTAINERS = (str, bytes, list, tuple, dict, Tensor, np.ndarray)


@contextmanager
def noted(source: Source, events: list[Event]) -> Iterator[None]:
    """Note what is loaded from a source meanwhile.

    A data set's attributes that can be called are taken for its transforms, and each transform
    of a `Compose` for one of its own.
    """
    undo: list[Callable[[], None]] = []

    def put(owner: Any, name: str, value: Any) -> None:
        # Not setattr, which a frozen dataclass refuses.
        undo.append(partial(object.__setattr__, owner, name, getattr(owner, name)))
        object.__setattr__(owner, name, value)

    try:
        for owner, path in _datasets(source.dataset, "data.train"):
            for name, value in list(vars(owner).items()):
                parts = getattr(value, "transforms", None)
                if isinstance(parts, list):
                    undo.append(partial(parts.__setitem__, slice(None), list(parts)))
                    paths = [f"{path}.{name}[{i}]" for i in range(len(parts))]
                    parts[:] = [
                        _Call(part, where, AUGMENTATION, events)
                        for part, where in zip(parts, paths, strict=True)
                    ]
                elif callable(value) and not _is_dataset(value):
                    put(owner, name, _Call(value, f"{path}.{name}", AUGMENTATION, events))
        for name, value in list(vars(source).items()):
            if callable(value) and not _is_dataset(value):
                put(source, name, _Call(value, "data.collate", COLLATE, events))
        put(source, "dataset", _Noted(source.dataset, events))
        yield
    finally:
        for restore in reversed(undo):
            restore()


class _Noted:
    """A data set whose samples, or whole batches, are noted."""

    def __init__(self, dataset: Any, events: list[Event]) -> None:
        self._dataset, self._events = dataset, events
        self._get = self._notes("__getitem__")
        if hasattr(dataset, "fetch"):
            self.fetch = self._notes("fetch")

    def __getitem__(self, index: int) -> Any:
        return self._get(index)

    def _notes(self, name: str) -> Callable[..., Any]:
        def load(first: Any, *rest: Any) -> Any:
            place = Place("data.train", "", ORDER)
            numbers = (f"{len(first)} samples",) if hasattr(first, "__len__") else ()
            self._events.append(
                Event(place, "sample ids", (), hashes_of(first), numbers=numbers, draws=True)
            )
            return call(first, *rest)

        method = getattr(self._dataset, name)
        call = _Call(method, "data.train", LOADING, self._events)
        return load


class _Call:
    """A function or an object that can be called, and whose calls are noted."""

    def __init__(self, function: Any, path: str, phase: str, events: list[Event]) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        place = Place(path, _line(function), phase)
        self.__dict__["_noted"] = (function, name, place, events)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        function, name, place, events = self._noted
        taken = hashes_of((args, kwargs))
        result = function(*args, **kwargs)
        events.append(Event(place, name, taken, hashes_of(result)))
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._noted[0], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._noted[0], name, value)


def hashes_of(value: Any) -> tuple[int, ...]:
    """Hash tensors, arrays, images, numbers and texts; other objects by their type alone."""
    return tuple(map(_hash, tree_leaves(value)))


def _line(function: Any) -> str:
    called = function if hasattr(function, "__code__") else type(function).__call__
    code = getattr(called, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else ""


def _hash(value: Any) -> int:
    if isinstance(value, Tensor):
        return hashes([value])[0]
    if hasattr(value, "__array_interface__"):  # arrays, NumPy's numbers, images of PIL
        array = np.ascontiguousarray(value)
        value = array.tobytes() if array.dtype != object else repr(array.tolist())
    text = repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _is_dataset(value: Any) -> bool:
    return hasattr(value, "__getitem__") and hasattr(value, "__len__")


def _datasets(dataset: Any, path: str, seen: tuple[Any, ...] = ()) -> Iterator[tuple[Any, str]]:
    """Yield a data set and those that it is made of; one that holds itself is yielded once."""
    values = getattr(dataset, "__dict__", {})
    if values:
        yield dataset, path
    seen = (*seen, dataset)
    for name, value in values.items():
        known = any(value is each for each in seen)
        if _is_dataset(value) and not isinstance(value, _CONTAINERS) and not known:
            yield from _datasets(value, f"{path}.{name}", seen)
