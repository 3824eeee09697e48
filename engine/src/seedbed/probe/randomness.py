"""Random numbers that no seed controls: generators that objects hold, and the system's entropy."""

import ast
import functools
import gc
import itertools
import linecache
import os
import pickle
import random
import sys
import sysconfig
import traceback
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import torch

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 6
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_ENGINE = os.path.dirname(os.path.dirname(__file__))


class UnseededDraws:
    """Tells which unseeded generators were drawn from, by comparing their states."""

    def __init__(self, device: torch.device, entropy: list[str], seeding: bool) -> None:
        """Begin to watch.

        Args:
            entropy: lines of code, as `entropy_lines` collects them.
            seeding: whether the global generators are seeded, and may be drawn from.
        """
        self._watched = {} if seeding else global_generators(device)
        self._entropy = entropy
        self._states: dict[str, bytes] = {}
        self.since_last()

    def watch(self, roots: dict[str, Any]) -> None:
        """Watch the generators that objects hold, too."""
        self._watched |= held_generators(roots)
        self.since_last()

    def since_last(self) -> list[str]:
        """Return the names of generators that were drawn from since the last call."""
        states = {name: _state(generator) for name, generator in self._watched.items()}
        moved = [name for name, state in states.items() if state != self._states.get(name, state)]
        lines = [f"the operating system's entropy ({line})" for line in self._entropy]
        self._states = states
        self._entropy.clear()
        return moved + lines


def global_generators(device: torch.device) -> dict[str, Any]:
    """Return the generators that Seedbed seeds, by name."""
    generators: dict[str, Any] = {
        "random": random._inst,
        "numpy.random": np.random.mtrand._rand,
        "torch": torch.default_generator,
    }
    if device.type == "cuda":
        torch.cuda.init()  # type: ignore[no-untyped-call]  # there are none before
        generators["torch.cuda"] = torch.cuda.default_generators[device.index or 0]
    return generators


def held_generators(roots: dict[str, Any]) -> dict[str, Any]:
    """Return the generators that objects hold, by path such as `model.noise.generator`.

    Looks into attributes, containers and closures, and into the globals of the user's modules.
    """
    seeded = {id(g) for g in global_generators(torch.device("cpu")).values()}
    seen: set[int] = set()
    held: dict[str, Any] = {}
    layer = [*roots.items(), *_of_user_modules()]
    for _ in range(_DEPTH):
        below = []
        for path, value in layer:
            if id(value) in seen:
                continue
            seen.add(id(value))
            if not isinstance(value, _GENERATORS):
                below += _parts(path, value)
            # SystemRandom has no state; what it draws is noticed as entropy.
            elif id(value) not in seeded and not isinstance(value, random.SystemRandom):
                held[path] = value
        layer = below
    return held


@contextmanager
def entropy_lines() -> Iterator[list[str]]:
    """Collect the lines of the user's code that ask the operating system for entropy meanwhile.

    `numpy.random.default_rng()` without a seed does, and so do `secrets` and `uuid.uuid4`.
    """
    lines: list[str] = []
    original = os.urandom

    def noting(size: int) -> bytes:
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
        libraries = (_STANDARD_LIBRARY, "<", __file__)
        caller = next((f for f in frames if not _file(f).startswith(libraries)), None)
        # PyTorch's compiler names files at random.
        if caller is not None and "/torch/" not in _file(caller) and not _is_seeded(caller):
            lines.append(f"{_file(caller)}:{caller.f_lineno}")
        return original(size)

    os.urandom = random._urandom = noting  # type: ignore[attr-defined]
    try:
        yield lines
    finally:
        os.urandom = random._urandom = original  # type: ignore[attr-defined]


def _file(frame: types.FrameType) -> str:
    return frame.f_code.co_filename


def _is_seeded(frame: types.FrameType) -> bool:
    """Return whether a frame calls `RandomState(seed)`, which drops the entropy that it reads.

    The source decides, nothing is evaluated: `RandomState(self.seed)` counts as seeded. If the
    seed is None, the bits differ from one time to the next.
    """
    place = next(itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    first, last, start, end = place
    if first is None or last is None or start is None or end is None:
        return False
    source = linecache.getlines(frame.f_code.co_filename, frame.f_globals)[first - 1 : last]
    encoded = [line.encode() for line in source]  # columns count bytes
    with suppress(SyntaxError, IndexError):
        encoded[-1] = encoded[-1][:end]
        encoded[0] = encoded[0][start:]
        call = ast.parse(b"(" + b"".join(encoded) + b")", mode="eval").body
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("RandomState"):
            seeds = [*call.args, *(keyword.value for keyword in call.keywords)]
            return any(ast.unparse(seed) != "None" for seed in seeds)
    return False


def _state(generator: Any) -> bytes:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.Generator):
        return pickle.dumps(generator.bit_generator.state)
    of_random = isinstance(generator, random.Random)
    return pickle.dumps(generator.getstate() if of_random else generator.get_state())


def _parts(path: str, value: Any) -> list[tuple[str, Any]]:
    """Return what an object holds, with the path to it."""
    if isinstance(value, dict):
        return [(f"{path}[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"{path}[{i}]", part) for i, part in enumerate(value[:1000])]
    if isinstance(value, functools.partial | types.MethodType | types.FunctionType):
        held = gc.get_referents(value)  # a closure's cells, arguments, the function; and globals
        return [(path, part) for part in held if part is not getattr(value, "__globals__", None)]
    if isinstance(value, types.CellType):
        return [(path, part) for part in gc.get_referents(value)]
    if isinstance(value, type | types.ModuleType):
        return []
    attributes = dict(getattr(value, "__dict__", {}))
    if isinstance(value, torch.nn.Module):
        attributes |= attributes.pop("_modules")
    return [(f"{path}.{name}", part) for name, part in attributes.items()]


def _of_user_modules() -> list[tuple[str, Any]]:
    """Return the global names of modules that are neither the engine's nor installed."""
    return [
        (f"{module}.{name}", value)
        for module, loaded in list(sys.modules.items())
        if _is_users(getattr(loaded, "__file__", None) or _STANDARD_LIBRARY)
        for name, value in list(vars(loaded).items())
        if isinstance(value, (*_GENERATORS, dict, list, tuple))
    ]


def _is_users(file: str) -> bool:
    return "site-packages" not in file and not file.startswith((_STANDARD_LIBRARY, _ENGINE, "<"))
