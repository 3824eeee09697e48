"""Random numbers that no seed controls: generators that objects hold, or that are not seeded.

What the operating system draws shows as another value the next time that the step is taken.
"""

import functools
import gc
import os
import pickle
import random
import sys
import sysconfig
import types
from typing import Any

import numpy as np
import torch

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 6
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_ENGINE = os.path.dirname(os.path.dirname(__file__))


class UnseededDraws:
    """Tells which unseeded generators were drawn from, by comparing their states."""

    def __init__(self, device: torch.device, seeding: bool) -> None:
        """Begin to watch.

        Args:
            seeding: whether the global generators are seeded, and may be drawn from.
        """
        self._watched = {} if seeding else global_generators(device)
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
        self._states = states
        return moved


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
            # SystemRandom has no state.
            elif id(value) not in seeded and not isinstance(value, random.SystemRandom):
                held[path] = value
        layer = below
    return held


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
