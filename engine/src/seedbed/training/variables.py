"""What the user's code keeps outside of what a run builds: a process that resumes has it anew.

Something drawn once and kept in a module, a class, a closure or an object of these outlives the
model that a rehearsal builds anew, and would hide that a resumed run draws it again.
"""

import functools
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed import project

_CONTAINERS = (dict, list, set, deque)
_SCALARS = (bool, int, float, complex, str, bytes, type(None))  # they hold nothing
_MOST_OBJECTS = 100_000
_MOST_BYTES = 1 << 20  # of an array or a tensor; larger ones are data sets and weights


class Variables:
    """All that can be reached from the user's modules, as it was at a time.

    Functions with their defaults, attributes and closures, classes, their instances, containers,
    small arrays and tensors. Not generators, slots, and what other packages keep.
    """

    def __init__(self) -> None:
        self._modules = {module.__name__: module for module in _own_modules()}
        self._snapshot: dict[int, tuple[Any, Any]] = {}  # by id: an object, and its content
        pending: list[Any] = list(self._modules.values())
        while pending and len(self._snapshot) < _MOST_OBJECTS:
            value = pending.pop()
            content = None if id(value) in self._snapshot else self._content(value)
            if content is not None:
                self._snapshot[id(value)] = value, content
                pending += _referred(content)

    def restore(self) -> None:
        """Give all of it back the content that it had; caches of functions are emptied."""
        for value, content in self._snapshot.values():
            if isinstance(value, functools._lru_cache_wrapper):
                value.cache_clear()
            elif isinstance(value, CellType):
                value.cell_contents = content[0]
            elif isinstance(value, Tensor):
                # Not written without need: what is expanded, or made for inference, takes nothing.
                if value.shape == content.shape and not torch.equal(value, content):
                    value.detach().copy_(content)
            elif isinstance(value, np.ndarray):
                value[...] = content
            elif not isinstance(value, _CONTAINERS):
                _restore_attributes(value, content, self._content(value) or {})
            elif _members(value) != _members(content):
                value.clear()
                (value.update if isinstance(value, dict | set) else value.extend)(content)

    def _content(self, value: Any) -> Any:
        """Return what is restored of an object; None if that is nothing."""
        if isinstance(value, _CONTAINERS):
            return value.copy()
        if isinstance(value, functools._lru_cache_wrapper):
            return {"__wrapped__": value.__wrapped__}
        if isinstance(value, CellType):
            with suppress(ValueError):  # of a variable that is not assigned yet
                return [value.cell_contents]
            return None
        if type(value) is np.ndarray:
            return value.copy() if value.nbytes <= _MOST_BYTES and value.flags.writeable else None
        if isinstance(value, Tensor):
            is_plain = value.layout is torch.strided and not value.is_meta
            return value.detach().clone() if is_plain and value.nbytes <= _MOST_BYTES else None
        owner = value if isinstance(value, type | FunctionType) else type(value)
        module = value.__name__ if isinstance(value, ModuleType) else owner.__module__
        is_own = module in self._modules or isinstance(value, nn.Module)
        return dict(_attributes(value)) if is_own else None


def _own_modules() -> Iterator[ModuleType]:
    """Yield the modules that are neither Python's, nor of installed distributions, nor ours."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and module.__name__.split(".")[0] != "seedbed" and not project.is_installed(file):
            yield module


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, FunctionType):
        for name in ("__defaults__", "__kwdefaults__", "__dict__", "__closure__"):
            yield name, getattr(value, name)
        return
    is_namespace = isinstance(value, ModuleType | type)
    for name, each in list(getattr(value, "__dict__", {}).items()):
        if not (is_namespace and (name.startswith(("__", "_abc_")) or type(each) is ModuleType)):
            yield name, each


def _restore_attributes(value: Any, before: dict[str, Any], now: dict[str, Any]) -> None:
    is_namespace = isinstance(value, ModuleType | type | FunctionType)
    put, remove = (setattr, delattr) if is_namespace else (object.__setattr__, object.__delattr__)
    for name in now.keys() - before.keys():
        remove(value, name)
    for name, each in before.items():
        if (name not in now or now[name] is not each) and not name.startswith("__"):
            put(value, name, each)


def _referred(content: Any) -> Iterable[Any]:
    """Return what a content refers to; the elements of tuples in it, too."""
    if isinstance(content, Tensor | np.ndarray):
        return ()
    values = [*content, *content.values()] if isinstance(content, dict) else content
    inside = (each for value in values if isinstance(value, tuple) for each in value)
    return [each for each in (*values, *inside) if type(each) not in _SCALARS]


def _members(container: Any) -> Any:
    values = container.values() if isinstance(container, dict) else ()
    return list(map(id, (*container, *values)))
