"""Places in a model: where an operation was called, in the forward or the backward pass."""

import runpy
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from seedbed import fingerprint

_TORCH = str(Path(torch.__file__).parent)
_ENGINE = str(Path(__file__).parents[1])
_NOT_THE_USERS = (_TORCH, _ENGINE, "<", runpy.__file__, warnings.__file__)


@dataclass(frozen=True)
class Place:
    """Where in a model an operation was called.

    Attributes:
        module: path of the innermost module, such as `features.3`; empty for the model itself.
        line: `file:line` in user code; empty if the operation was not called from there.
        phase: forward, backward or update.
    """

    module: str
    line: str
    phase: str

    def __str__(self) -> str:
        module = f" in module {self.module}" if self.module else ""
        return f"{self.phase} pass{module}" + (f", {self.line}" if self.line else "")


def names_of(model: nn.Module | None) -> dict[int, str]:
    """Return module paths by `id(module)`; empty for None, a model that is being built."""
    return {} if model is None else {id(module): name for name, module in model.named_modules()}


def locate(frames: Iterable[tuple[FrameType, int]], names: Mapping[int, str]) -> Place:
    """Return the place in a model of an operation called from stack frames, outermost first.

    Args:
        names: module paths from `names_of`.
    """
    module, line, phase = "", "", "forward"
    for frame, number in frames:
        file = frame.f_code.co_filename
        owner = names.get(id(frame.f_locals.get("self")))
        if owner is not None:  # during an optimizer's step, a closure calls the model
            module, phase = owner, "forward" if phase == "update" else phase
        if frame.f_code.co_name == "backward" and file.startswith(_TORCH):
            phase = "backward"
        if "torch/optim" in file or "clip_grad" in file:
            phase = "update"
        if not file.startswith(_NOT_THE_USERS):
            line = f"{file}:{number}"
    return Place("" if phase == "update" else module, line, phase)


class Places(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the place of the running operation, and of the first that failed.

    A backward pass has no Python stack, so the place is that of the forward operation, found by the
    sequence number that autograd assigns to differentiable operations.
    """

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place = Place("", "", "forward")
        self.failed: Place | None = None
        self._modules, self._made_at = names_of(model), dict[int, Place]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the place of an operation and run it."""
        node = torch._C._current_autograd_node()
        if node is not None:
            made = self._made_at.get(node._sequence_nr(), Place("", "", "backward"))
            self.place = replace(made, phase="backward")
        else:
            frames = list(traceback.walk_stack(sys._getframe(1)))
            if any(frame.f_code.co_filename == fingerprint.__file__ for frame, _ in frames):
                return func(*args, **(kwargs or {}))  # not part of a step: it hashes results
            self.place = locate(reversed(frames), self._modules)
            # A differentiable operation has just been assigned the previous number. For any other,
            # that number belongs to an earlier operation, whose place is kept.
            self._made_at.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.place)
        try:
            return self.run(func, args, kwargs or {})
        except RuntimeError:  # note it now: others may run while the stack unwinds
            self.failed = self.failed or self.place
            raise

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation."""
        return func(*args, **kwargs)
