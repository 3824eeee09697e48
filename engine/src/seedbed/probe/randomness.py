"""Randomness that no stream keys: generators that users hold, and entropy from the system."""

import ast
import functools
import itertools
import linecache
import os
import pickle
import random
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# Objects of these packages hold nothing of the user's that their attributes do not show.
_LIBRARIES = ("torch", "torchvision", "numpy", "builtins", "seedbed.rng")
_DEPTH = 6
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_TORCH = os.path.dirname(torch.__file__)


class Lookout:
    """Tells what randomness was drawn since it was last asked."""

    def __init__(self, device: torch.device, entropy: list[str]) -> None:
        """Look at the global generators, and at what `entropy_noted` collects."""
        self._global = global_generators(device)
        self._held: dict[str, Any] = {}
        self._states: dict[str, bytes] = {}
        self._entropy = entropy
        self.drawn(seeded=True)

    def watch(self, roots: dict[str, Any]) -> None:
        """Watch the generators that objects hold, too."""
        self._held = held_generators(roots)
        self.drawn(seeded=True)

    def drawn(self, seeded: bool) -> list[str]:
        """Return the names of what was drawn from outside the streams since the last call.

        Args:
            seeded: whether a stream seeded the global generators meanwhile.
        """
        states = {name: _state(g) for name, g in {**self._global, **self._held}.items()}
        moved = [name for name, state in states.items() if state != self._states.get(name, state)]
        lines = [f"the operating system's entropy ({line})" for line in self._entropy]
        self._states = states
        self._entropy.clear()
        return [name for name in moved if not (seeded and name in self._global)] + lines


def global_generators(device: torch.device) -> dict[str, Any]:
    """Return the generators that Seedbed keys, by name."""
    found: dict[str, Any] = {
        "random": random._inst,
        "numpy.random": np.random.mtrand._rand,
        "torch": torch.default_generator,
    }
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there are none before
        found["torch.cuda"] = torch.cuda.default_generators[device.index or 0]
    return found


def held_generators(roots: dict[str, Any]) -> dict[str, Any]:
    """Return the generators that objects hold, by path such as `model.noise.generator`.

    Looks into attributes, containers, closures, and the globals that functions and methods name.
    """
    known = {id(g) for g in global_generators(torch.device("cpu")).values()}
    seen: set[int] = set()
    found: dict[str, Any] = {}
    layer = list(roots.items())
    for _ in range(_DEPTH):
        below = []
        for path, value in layer:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, random.SystemRandom):  # has no state; it asks the system
                continue
            if isinstance(value, _GENERATORS):
                if id(value) not in known:
                    found[path] = value
            else:
                below += _parts(path, value)
        layer = below
    return found


@contextmanager
def entropy_noted() -> Iterator[list[str]]:
    """Collect the lines of the user's code that ask the operating system for entropy meanwhile.

    `numpy.random.default_rng()` without a seed does, and so do `secrets` and `uuid.uuid4`.
    """
    lines: list[str] = []
    original = os.urandom

    def noting(size: int) -> bytes:
        caller = _caller_outside_the_standard_library()
        if caller is None:
            lines.append("")
        # PyTorch's compiler names files at random.
        elif not caller.f_code.co_filename.startswith(_TORCH) and not _drops_entropy(caller):
            lines.append(f"{caller.f_code.co_filename}:{caller.f_lineno}")
        return original(size)

    os.urandom = random._urandom = noting  # type: ignore[attr-defined]
    try:
        yield lines
    finally:
        os.urandom = random._urandom = original  # type: ignore[attr-defined]


def _caller_outside_the_standard_library() -> types.FrameType | None:
    for frame, _ in traceback.walk_stack(sys._getframe(2)):
        file = frame.f_code.co_filename
        standard = file.startswith((_STANDARD_LIBRARY, "<")) and "site-packages" not in file
        if not standard:
            return frame
    return None


def _drops_entropy(frame: types.FrameType) -> bool:
    """Return whether a frame is calling `RandomState(seed)`, which asks for entropy all the same.

    NumPy seeds the generator twice then: by entropy, and by what it was given.
    """
    call = _call_in_progress(frame)
    if call is None or ast.unparse(call.func).rpartition(".")[2] != "RandomState":
        return False
    seeds = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(_is_something(seed, frame) for seed in seeds)


def _call_in_progress(frame: types.FrameType) -> ast.Call | None:
    """Return the call that a frame waits for; None where its source cannot be read."""
    place = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    with suppress(SyntaxError):
        source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
        for call in ast.walk(ast.parse(source)):
            if isinstance(call, ast.Call):
                columns = call.col_offset, call.end_col_offset
                if place == (call.lineno, call.end_lineno, *columns):
                    return call
    return None


def _is_something(value: ast.expr, frame: types.FrameType) -> bool:
    """Return whether an expression is not None, without calling anything for it."""
    if any(isinstance(part, ast.Call | ast.Await | ast.NamedExpr) for part in ast.walk(value)):
        return True
    code = compile(ast.Expression(value), "<seed>", "eval")
    return eval(code, frame.f_globals, frame.f_locals) is not None


def _state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        return pickle.dumps(generator.getstate())
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    return pickle.dumps(generator.get_state())


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return what an object holds, with the path to it."""
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{i}]", part) for i, part in enumerate(value[:1000])]
    if isinstance(value, functools.partial):
        return [
            (f"{path}.func", value.func),
            *_parts(path, value.args),
            *_parts(path, value.keywords),
        ]
    if isinstance(value, types.MethodType):
        return [(path, value.__func__), (path, value.__self__)]
    if isinstance(value, types.FunctionType):
        return _parts_of_function(path, value)
    if isinstance(value, type | types.ModuleType):
        return []
    held = dict(getattr(value, "__dict__", {}))
    if isinstance(value, torch.nn.Module):
        held |= held.pop("_modules")
    attributes = [(f"{path}.{name}", part) for name, part in held.items()]
    return attributes + [(path, method) for method in _methods(type(value))]


def _parts_of_function(path: str, function: types.FunctionType) -> list[tuple[str, Any]]:
    cells = list(_cells(function))
    names = [name for name in function.__code__.co_names if name in function.__globals__]
    return [(path, cell) for cell in cells] + [
        (f"{function.__module__}.{name}", function.__globals__[name]) for name in names
    ]


def _cells(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function's closure holds."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # a name without a value yet
            yield cell.cell_contents


def _methods(kind: type) -> list[Callable[..., Any]]:
    return [
        member
        for base in kind.__mro__
        if not base.__module__.startswith(_LIBRARIES)
        for member in vars(base).values()
        if isinstance(member, types.FunctionType)
    ]
