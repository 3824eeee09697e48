"""Trace of how a batch is loaded: events for order, samples, transforms and collate."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from inspect import getattr_static
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from seedbed.data.positions import Position
from seedbed.data.source import Source
from seedbed.explain.trace import Event, hashes
from seedbed.operations import Place

ORDER, LOADING = "data order", "sample loading"
AUGMENTATION, COLLATE = "augmentation", "collate"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@contextmanager
def noted(source: Source, places: Iterable[Position]) -> Iterator[list[Event]]:
    """Collect the events of loading these positions from a source in the context.

    Callable attributes of a data set, and of those that it wraps, are assumed to be transforms;
    each transform in a `Compose` has its own events.
    """
    events = []
    for place in places:
        order, size = Place("data.train", "", ORDER), f"{len(place.ids)} samples"
        events.append(Event(order, "sample ids", (), hashes_of(place), (size,)))
    with ExitStack() as undo:

        def note(holder: Any, key: Any, path: str, phase: str) -> None:
            undo.callback(holder.__setitem__, key, holder[key])
            holder[key] = _Noted(holder[key], path, phase, events)

        parts = [("data.train", source.dataset)]
        for path, owner in parts:  # grows in the loop
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                where, transforms = f"{path}.{name}", getattr_static(value, "transforms", None)
                if isinstance(value, type):  # such as np.float32
                    continue
                if isinstance(transforms, list):
                    for i in range(len(transforms)):
                        note(transforms, i, f"{where}[{i}]", AUGMENTATION)
                elif callable(value):
                    note(vars(owner), name, where, AUGMENTATION)
                elif hasattr(value, "__getitem__") and not any(value is x for _, x in parts):
                    parts.append((where, value))
        if source._collate is not None:
            note(vars(source), "_collate", "data.collate", COLLATE)
        note(vars(source), "dataset", "data.train", LOADING)
        yield events


class _Noted:
    """Wrapper of a data set, transform or collate function that adds an event for each call."""

    def __init__(self, noted: Any, path: str, phase: str, events: list[Event]) -> None:
        self.__dict__.update(_noted=noted, _path=path, _phase=phase, _events=events)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._noted, *args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self._call(self._noted.__getitem__, index)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._noted, name)
        return partial(self._call, value) if name == "fetch" else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._noted, name, value)

    __class__ = property(lambda self: type(self._noted))  # for isinstance

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", type(function).__name__)
        call = getattr(function, "forward", type(function).__call__)  # of a module: its forward
        code = getattr(function, "__code__", getattr(call, "__code__", None))
        line = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
        place, taken = Place(self._path, line, self._phase), hashes_of((args, kwargs))
        result = function(*args, **kwargs)
        self._events.append(Event(place, name, taken, hashes_of(result)))
        return result


for _name in ("__len__", "__iter__", "__contains__", "__enter__", "__exit__"):
    setattr(_Noted, _name, lambda self, *xs, _name=_name: getattr(self._noted, _name)(*xs))


def hashes_of(value: Any) -> tuple[int, ...]:
    """Hash tensors, arrays, images, numbers and strings; other objects by their type alone."""
    return tuple(map(_hash, tree_leaves(value)))


def _hash(value: Any) -> int:
    if isinstance(value, Tensor):
        return hashes([value])[0]
    if hasattr(value, "__array_interface__"):  # arrays, NumPy scalars, PIL images
        array = np.ascontiguousarray(value)
        value = array.tobytes() if array.dtype != object else repr(array.tolist())
    text = repr(value) if isinstance(value, _PLAIN) else type(value).__name__
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
