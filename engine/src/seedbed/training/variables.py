"""Snapshots of state that user code keeps outside of a run's objects, lost in a resume.

A value drawn once and kept in a module, a class, a closure or an instance outlives the model
that a rehearsal rebuilds, and would hide that a resumed run draws it again.
"""

import functools
import gc
import sys
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed import project

_SCALARS = (bool, int, float, complex, str, bytes, type(None))  # they refer to no other objects
# Their references never change.
_FIXED = (tuple, staticmethod, classmethod, property, partial, MethodType)
_MOST_OBJECTS = 100_000
_MOST_BYTES = 1 << 20  # of an array or a tensor; larger ones are data sets and weights


class Variables:
    """A snapshot of the objects that can be reached from the user's modules.

    It covers functions with their defaults, attributes and closures, classes, their instances,
    containers, small arrays and tensors; not generators, slots and the state of other packages.
    """

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}  # neither installed nor Seedbed's
        for module in list(sys.modules.values()):
            file = getattr(module, "__file__", None)
            is_ours = module.__name__.split(".")[0] == "seedbed"
            if file and not is_ours and not project.is_installed(file):
                self._modules[module.__name__] = module
        # By id: the object, kept so that its id stays its own, and a function that restores it.
        self._snapshot: dict[int, tuple[Any, Callable[[], object]]] = {}
        pending: list[Any] = list(self._modules.values())
        while pending and len(self._snapshot) < _MOST_OBJECTS:
            value = pending.pop()
            if id(value) in self._snapshot:
                continue
            members, put_back = self._look_at(value)
            if put_back is not None:
                self._snapshot[id(value)] = value, put_back
            pending += [each for each in members if type(each) not in _SCALARS]

    def restore(self) -> None:
        """Restore the snapshot; `lru_cache`s are cleared."""
        for _, put_back in self._snapshot.values():
            put_back()

    def _look_at(self, value: Any) -> tuple[Iterable[Any], Callable[[], object] | None]:
        """Return an object's referents and a function that restores its present content, if any."""
        if isinstance(value, _FIXED):
            return gc.get_referents(value), None
        if isinstance(value, dict | list | set | deque):
            content: Any = value.copy()
            members = [*content, *content.values()] if isinstance(value, dict) else content
            return members, partial(_refill, value, content)
        if isinstance(value, functools._lru_cache_wrapper):
            return [value.__wrapped__], value.cache_clear
        if isinstance(value, CellType):
            with suppress(ValueError):  # of a variable that is not yet assigned
                content = value.cell_contents
                return [content], partial(setattr, value, "cell_contents", content)
        if type(value) is np.ndarray and value.nbytes <= _MOST_BYTES and value.flags.writeable:
            return (), partial(np.copyto, value, value.copy())
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            is_small = value.nbytes <= _MOST_BYTES
            return (), partial(_rewrite, value, value.detach().clone()) if is_small else None
        owner = value if isinstance(value, type | FunctionType) else type(value)
        module = value.__name__ if isinstance(value, ModuleType) else owner.__module__
        if module not in self._modules and not isinstance(value, nn.Module):
            return (), None
        if isinstance(value, ModuleType | type):
            names = _names(value)
            return names.values(), partial(_rename, value, names)
        members = [getattr(value, "__dict__", None)]  # restored like any other dict
        if isinstance(value, FunctionType):
            members += [value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ())]
        return members, lambda: None


def _refill(container: Any, content: Any) -> None:
    def members(of: Any) -> list[int]:
        return [id(each) for each in (*of, *(of.values() if isinstance(of, dict) else ()))]

    if members(container) != members(content):
        container.clear()
        (container.update if isinstance(container, dict | set) else container.extend)(content)


def _rewrite(tensor: Tensor, content: Tensor) -> None:
    # Written only if needed: expanded and inference tensors do not allow it.
    if tensor.shape == content.shape and not torch.equal(tensor, content):
        tensor.detach().copy_(content)


def _rename(namespace: Any, before: dict[str, Any]) -> None:
    now = _names(namespace)
    for name in now.keys() - before.keys():
        delattr(namespace, name)
    for name, each in before.items():
        if name not in now or now[name] is not each:
            setattr(namespace, name, each)


def _names(namespace: Any) -> dict[str, Any]:
    """Return a module's or class's variables, without dunder names, ABC internals and modules."""
    return {
        name: each
        for name, each in list(vars(namespace).items())
        if not name.startswith(("__", "_abc_")) and type(each) is not ModuleType
    }
