"""How a batch is loaded, noted like operations: order, samples, transforms, collate."""

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from seedbed import rng
from seedbed.data.source import Source
from seedbed.explain.trace import Event, hashes
from seedbed.operations.place import Place

ORDER, LOADING = "data order", "sample loading"
AUGMENTATION, COLLATE = "augmentation", "collate"
DATA_PHASES = (ORDER, LOADING, AUGMENTATION, COLLATE)
_PLAIN = (bool, int, float, complex, str, bytes, type(None), rng.Draws)
_CONTAINERS = (str, bytes, list, tuple, dict, Tensor, np.ndarray)


@contextmanager
def noted(source: Source, events: list[Event]) -> Iterator[None]:
    """Note what is loaded from a source meanwhile.

    A data set's attributes that can be called are taken for its transforms, and each transform
    of a `Compose` for one of its own.
    """
    with ExitStack() as undo:

        def put(owner: Any, name: str, value: Any) -> None:
            # Not setattr, which a frozen dataclass refuses.
            undo.callback(object.__setattr__, owner, name, getattr(owner, name))
            object.__setattr__(owner, name, value)

        for owner, path in _datasets(source.dataset, "data.train"):
            for name, value in list(vars(owner).items()):
                where = f"{path}.{name}"
                transforms = getattr(value, "transforms", None)
                if isinstance(transforms, list):
                    undo.callback(transforms.__setitem__, slice(None), list(transforms))
                    for i, each in enumerate(transforms):
                        transforms[i] = _Call(each, f"{where}[{i}]", AUGMENTATION, events)
                elif callable(value) and not _is_dataset(value):
                    put(owner, name, _Call(value, where, AUGMENTATION, events))
        for name, value in list(vars(source).items()):
            if callable(value) and not _is_dataset(value):
                put(source, name, _Call(value, "data.collate", COLLATE, events))
        put(source, "dataset", _Noted(source.dataset, events))
        yield


class _Noted:
    """A data set whose samples, or whole batches, are noted."""

    def __init__(self, dataset: Any, events: list[Event]) -> None:
        self._dataset, self._events = dataset, events
        if hasattr(dataset, "fetch"):
            self.fetch = partial(self._load, "fetch")

    def __getitem__(self, index: int) -> Any:
        return self._load("__getitem__", index)

    def _load(self, method: str, ids: Any, *rest: Any) -> Any:
        numbers = (f"{len(ids)} samples",) if hasattr(ids, "__len__") else ()
        place = Place("data.train", "", ORDER)
        self._events.append(
            Event(place, "sample ids", (), hashes_of(ids), numbers=numbers, draws=True)
        )
        function = getattr(self._dataset, method)
        return _Call(function, "data.train", LOADING, self._events)(ids, *rest)


class _Call:
    """A function or an object that can be called, and whose calls are noted."""

    def __init__(self, function: Any, path: str, phase: str, events: list[Event]) -> None:
        name = getattr(function, "__name__", type(function).__name__)
        called = function if hasattr(function, "__code__") else type(function).__call__
        code = getattr(called, "__code__", None)
        line = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
        self.__dict__["_noted"] = (function, name, Place(path, line, phase), events)

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
