"""PyTorch's compiler, imported by those who compile.

Optimizers import `torch._dynamo` when they are built and in every step, to tell a compiler where it
should not look. A run that compiles nothing waits a second for that, a third of its time to the
first step.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cached_property
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


def defer_compiler() -> None:
    """Let `torch._dynamo` be imported when something is asked of it that needs it."""
    import torch

    if _NAME not in sys.modules:
        sys.modules[_NAME] = torch._dynamo = _Deferred(_NAME)


class _Deferred(ModuleType):
    """Stands for the module until it is imported, and passes everything on from then.

    What optimizers ask, it answers: while nothing is compiled, there is nothing to keep from being
    compiled. Anything else, also a submodule, imports the module.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        spec = importlib.util.find_spec(name)
        self.__file__ = spec.origin if spec else None  # `inspect` asks all modules for it
        self._not_disabled: list[Callable[..., Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)

    @cached_property
    def _module(self) -> ModuleType:
        import torch

        if sys.modules.get(_NAME) is self:  # else it is being imported, and asks
            del sys.modules[_NAME], torch._dynamo
            for function in self._not_disabled:  # PyTorch keeps what `disable` returned there
                vars(function).pop("__dynamo_disable", None)
        return importlib.import_module(_NAME)

    def graph_break(self, *words: Any, **options: Any) -> None:
        """Tell the compiler, if there is one, to end a graph here."""
        if "_module" in vars(self):
            self._module.graph_break(*words, **options)

    def disable(self, fn: Any = None, *words: Any, wrapping: bool = True, **options: Any) -> Any:
        """Return a function that is not compiled: as it is, if PyTorch itself asks first."""
        if wrapping or "_module" in vars(self):
            return self._module.disable(fn, *words, wrapping=wrapping, **options)
        self._not_disabled.append(fn)
        return fn
