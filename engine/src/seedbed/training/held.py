"""What a model holds beside the values of its weights: noted, put back, compared.

Modes, buffers, hooks, which weights need gradients, generators, and plain attributes with what
lies in them: numbers, tensors, arrays, lists, dictionaries, objects of the user's classes.
"""

import argparse
import copy
import pickle
import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seedbed import fingerprint
from seedbed.errors import InputError
from seedbed.methods import Method

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_CONTAINERS = (dict, list, set, deque)
_PLAIN = (bool, int, float, complex, str, bytes, NoneType, np.generic)
_NAMESPACES = (argparse.Namespace, SimpleNamespace)
# Objects of these packages are left alone: loggers, locks, files. Modules are not.
_LIBRARIES = {*sys.stdlib_module_names, "numpy", "torch"}
_DEPTH = 6
# What a module holds in these is in a checkpoint.
_SAVED = ("_buffers", "_non_persistent_buffers_set")


@dataclass(frozen=True)
class _Cell:
    """Something that can be changed in place, and what it held.

    Attributes:
        value: a tensor, an array, a generator, a container or the attributes of an object.
        saved: whether a checkpoint holds it.
    """

    path: str
    value: Any
    content: Any
    saved: bool


class Held:
    """What objects hold at this moment; `put_back` gives it back to them.

    The values of the model's parameters are left out: only whether they need gradients is noted.
    """

    @torch.no_grad()
    def __init__(self, *passed_over: Any, **roots: Any) -> None:
        """Note what models and other objects hold, by the names that paths begin with.

        Args:
            passed_over: containers that are not noted, nor what lies in them.
        """
        self._cells: list[_Cell] = []
        self._seen: dict[int, Any] = {}  # held, so that no id is given twice
        for container in passed_over:
            self._pass_over(container)
        self._weights = {_memory(p) for p in _parameters(roots.get("model"))} - {None}
        for name, root in roots.items():
            self._walk(name, root, _DEPTH, False)

    @torch.no_grad()
    def put_back(self, saved: bool | None = None) -> None:
        """Put everything back; with `saved`, only what checkpoints hold, or what they do not."""
        cells = [cell for cell in self._cells if saved is None or cell.saved is saved]
        tensors = [cell for cell in cells if _is_tensor(cell.value)]
        now = bits_of([cell.value for cell in tensors])
        then = bits_of([cell.content for cell in tensors])
        for cell, kind_now, kind_then in zip(tensors, now, then, strict=True):
            if kind_now[:2] != kind_then[:2]:  # another shape or type
                cell.value.data = cell.content.clone()
            elif kind_now != kind_then:
                # Numbers that share their memory, as in an expanded tensor, can be written once.
                own = tuple(slice(1 if step == 0 else None) for step in cell.value.stride())
                cell.value[own].copy_(cell.content[own])
        for cell in cells:
            if not _is_tensor(cell.value):
                _write(cell.value, cell.content)

    @torch.no_grad()
    def unsaved(self) -> dict[str, tuple[str, Any]]:
        """Return by path what no checkpoint holds: its type's name, and its value to compare."""
        found: dict[str, tuple[str, Any]] = {}
        cells = [cell for cell in self._cells if not cell.saved]
        tensors = [cell for cell in cells if _is_tensor(cell.value)]
        for cell, value in zip(tensors, bits_of([c.content for c in tensors]), strict=True):
            found[cell.path] = ("tensor", value)
        for cell in cells:
            kind = type(cell.value).__name__
            if isinstance(cell.value, nn.Parameter):
                found[f"{cell.path}.requires_grad"] = ("bool", cell.content)
            elif isinstance(cell.value, (np.ndarray, *_GENERATORS)):
                found[cell.path] = (kind, pickle.dumps(_comparable(cell.content)))
            elif isinstance(cell.value, set):
                found[cell.path] = (kind, sorted(repr(x) for x in cell.content if _is_plain(x)))
            elif not _is_tensor(cell.value):
                for path, part in _named(cell.path, cell.content):
                    if _is_plain(part):
                        found[path] = (type(part).__name__, repr(part))
        return found

    def _pass_over(self, value: Any) -> None:
        if id(value) not in self._seen and not isinstance(value, nn.Parameter):  # the model's
            self._seen[id(value)] = value
            for _, part in _named("", value) if isinstance(value, (*_CONTAINERS, tuple)) else ():
                self._pass_over(part)

    def _walk(self, path: str, value: Any, depth: int, saved: bool) -> None:
        if depth == 0 or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if isinstance(value, nn.Module):
            return self._walk_module(path, value, depth)
        if _is_cell(value):
            in_model = _memory(value) in self._weights if isinstance(value, Tensor) else False
            if not (_is_tensor(value) and in_model):
                self._cells.append(_Cell(path, value, _read(value), saved))
            if isinstance(value, nn.Parameter) and self._weights and not in_model:
                self._walk(path, value.data, depth, saved)  # of a network beside the model
        elif _is_users(value):
            self._cells.append(_Cell(f"{path}.", vars(value), dict(vars(value)), saved))
            value = self._cells[-1].content
            path += "."
        if isinstance(value, (*_CONTAINERS, tuple)):
            for name, part in _named(path, value):
                self._walk(name, part, depth - 1, saved)
        return None

    def _walk_module(self, path: str, module: nn.Module, depth: int) -> None:
        """Note a module's attributes; one with an extra state of its own knows what to save."""
        attributes = vars(module)
        in_model = path.partition(".")[0] == "model"  # what else is a module is in no checkpoint
        saved = in_model and type(module).get_extra_state is not nn.Module.get_extra_state
        self._cells.append(_Cell(f"{path}.", attributes, dict(attributes), saved))
        for name, value in list(attributes.items()):
            if name in ("_modules", "_parameters", *_SAVED):
                in_checkpoint = in_model and name in _SAVED
                self._cells.append(_Cell(f"{path}.{name}", value, copy.copy(value), in_checkpoint))
                parts = value.items() if isinstance(value, dict) else ()
                for key, part in list(parts):
                    self._walk(f"{path}.{key}", part, _DEPTH, in_checkpoint)
            else:
                self._walk(f"{path}.{name}", value, depth - 1, saved)


@contextmanager
def kept(model: nn.Module, method: Method, with_weights: bool) -> Iterator[None]:
    """Put a model into evaluation mode, and give it and its method back as they went in.

    Raises:
        InputError: with `with_weights`, if their bits are others; nobody has a copy of them.
    """
    before = Held(model=model, task=method.task, method=method)
    weights = _hash_of_weights(model) if with_weights else None
    try:
        with evaluating(model):
            yield
    finally:
        before.put_back()
    if with_weights and _hash_of_weights(model) != weights:
        raise InputError(
            "model: expected an evaluation that leaves weights as they are, got a "
            f"{type(model).__name__} that changes them; change them in training mode alone, or say "
            "determinism.on_nondeterministic=warn"
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back into the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        # Some models do more than note their mode: those that merge adapters, for instance.
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)


def bits_of(tensors: Sequence[Tensor]) -> list[tuple[Any, ...]]:
    """Return dtype, shape and hash of each tensor: tensors with other bits have others."""
    if not tensors:
        return []
    hashes = fingerprint.of_lists([[tensor] for tensor in tensors]).tolist()
    kinds = ((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
    return [(*kind, found) for kind, found in zip(kinds, hashes, strict=True)]


def _hash_of_weights(model: nn.Module) -> int:
    return int(fingerprint.of_tensors(model.parameters()))


def _parameters(root: Any) -> Iterator[nn.Parameter]:
    return root.parameters() if isinstance(root, nn.Module) else iter(())


def _is_tensor(value: Any) -> bool:
    """Return whether something is a tensor of its own with bits that can be copied."""
    return (
        isinstance(value, Tensor)
        and not isinstance(value, nn.Parameter)
        and not (is_lazy(value) or value.is_meta or value.is_nested or value.is_quantized)
        and value.layout is torch.strided
    )


def _is_cell(value: Any) -> bool:
    if isinstance(value, Tensor):
        return isinstance(value, nn.Parameter) or _is_tensor(value)
    if isinstance(value, random.SystemRandom):  # it has no state
        return False
    return isinstance(value, (np.ndarray, *_GENERATORS, *_CONTAINERS))


def _is_users(value: Any) -> bool:
    """Return whether something is an object, and no class or function, of a class of the user's.

    An optimizer is one, whoever's it is: others are wrapped around it.
    """
    if isinstance(value, (*_NAMESPACES, torch.optim.Optimizer)):
        return True
    package = str(type(value).__module__).partition(".")[0]
    return package not in _LIBRARIES and not isinstance(value, type) and hasattr(value, "__dict__")


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, tuple) and all(map(_is_plain, value)))


def _memory(tensor: Tensor) -> int | None:
    """Return where the memory of a tensor begins, None for one that has none of its own."""
    has_memory = not is_lazy(tensor) and tensor.layout is torch.strided and not tensor.is_nested
    return tensor.untyped_storage().data_ptr() or None if has_memory else None


def _named(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return the parts of a container, or of the attributes of an object (a path with a dot)."""
    if path.endswith("."):
        return [(f"{path}{name}", part) for name, part in value.items()]
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    names = [i if isinstance(key, Tensor) else key for i, (key, _) in enumerate(parts)]
    values = value.values() if isinstance(value, dict) else value
    return [(f"{path}[{name!r}]", part) for name, part in zip(names, values, strict=True)]


def _read(value: Any) -> Any:
    """Return a copy of what can change in something, parts of containers as they are."""
    if isinstance(value, nn.Parameter):
        return value.requires_grad
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, torch.Generator | np.random.RandomState):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, random.Random):
        return value.getstate()
    return copy.copy(value)


def _write(value: Any, content: Any) -> None:
    """Put back what `_read` returned, where it is another one now."""
    if isinstance(value, nn.Parameter):
        if value.requires_grad != content:
            value.requires_grad_(content)
    elif isinstance(value, torch.Generator | np.random.RandomState):
        value.set_state(content)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = content
    elif isinstance(value, random.Random):
        value.setstate(content)
    elif isinstance(value, np.ndarray):
        if value.tobytes() != content.tobytes():
            value[...] = content
    elif _identities(value) != _identities(content):
        value.clear()
        value.extend(content) if isinstance(value, list | deque) else value.update(content)


def _identities(value: Any) -> list[tuple[int, int]]:
    parts = value.items() if isinstance(value, dict) else ((None, part) for part in value)
    return [(id(key), id(part)) for key, part in parts]


def _comparable(content: Any) -> Any:
    return content.numpy().tobytes() if isinstance(content, Tensor) else content
