"""Optimizers without PyTorch's compiler, which takes a second to import.

They import `torch._dynamo` when they are built, saved, loaded and in every step, to tell a compiler
where it should not look. That is a third of the time to a run's first step, for nothing if the run
compiles nothing.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


@contextmanager
def without_compiler() -> Iterator[None]:
    """Let optimizers do without the compiler meanwhile, unless it is imported or needed."""
    if _NAME in sys.modules:
        yield
        return
    stand_in = sys.modules[_NAME] = _StandIn(_NAME)
    try:
        yield
    finally:
        stand_in.leave()


class _StandIn(ModuleType):
    """Answers what optimizers ask: nothing is compiled, so nothing is to be kept from it.

    Whoever asks for anything else gets the module.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._kept: list[Callable[..., Any]] = []

    def __getattr__(self, name: str) -> Any:
        self.leave()
        return getattr(importlib.import_module(_NAME), name)

    def leave(self) -> None:
        """Leave the place to the module, as if this had never been here."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        for function in self._kept:  # PyTorch notes there what `disable` returned
            vars(function).pop("__dynamo_disable", None)

    def graph_break(self) -> None:
        """Do nothing: no graph is being made."""

    def disable(self, fn: Any = None, *words: Any, wrapping: bool = True, **options: Any) -> Any:
        """Return a function of PyTorch's own as it is; others may be compiled one day."""
        if wrapping:
            return self.__getattr__("disable")(fn, *words, wrapping=wrapping, **options)
        self._kept.append(fn)
        return fn
