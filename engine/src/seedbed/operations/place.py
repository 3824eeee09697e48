"""Places in a model: where an operation was called, in the forward or the backward pass."""

import runpy
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
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
        line: `file:line` of the user's code; empty if the operation belongs to none.
        phase: forward, backward or update.
    """

    module: str
    line: str
    phase: str

    def __str__(self) -> str:
        module = f" in module {self.module}" if self.module else ""
        return f"{self.phase} pass{module}" + (f", {self.line}" if self.line else "")


def locate(frames: Iterable[tuple[FrameType, int]], names: Mapping[int, str]) -> Place:
    """Return the place in a model that stack frames, outermost first, lead to.

    Args:
        names: what `names_of` returns.
    """
    module, line, phase = "", "", "forward"
    for frame, number in frames:
        file = frame.f_code.co_filename
        module = names.get(id(frame.f_locals.get("self")), module)
        if frame.f_code.co_name == "backward" and file.startswith(_TORCH):
            phase = "backward"
        if not file.startswith(_NOT_THE_USERS):
            line = f"{file}:{number}"
    return Place(module, line, phase)


def names_of(model: nn.Module | None) -> dict[int, str]:
    """Return the path of each module of a model by its id; none while it is being built."""
    return {} if model is None else {id(module): name for name, module in model.named_modules()}


class Places(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds where each operation is called while it is active.

    A backward pass has no stack of its own: there it is the place of the forward pass. Autograd
    numbers the operations that it will differentiate.

    Attributes:
        place: of the operation that runs, or ran last.
    """

    def __init__(self, model: nn.Module | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.place = Place("", "", "forward")
        self._names = names_of(model)
        self._made_at: dict[int, Place] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation and know its place."""
        frames = list(traceback.walk_stack(sys._getframe(1)))
        files = [frame.f_code.co_filename for frame, _ in frames]
        if fingerprint.__file__ in files:
            return func(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node()
        if node is not None:
            made = self._made_at.get(node._sequence_nr(), Place("", "", "backward"))
            self.place = replace(made, phase="backward")
        else:
            self.place = locate(reversed(frames), self._names)
            if any("torch/optim" in file or "clip_grad" in file for file in files):
                self.place = replace(self.place, module="", phase="update")
            # An operation that will be differentiated has just been given the number before this
            # one; one that will not be finds there what was given to another.
            self._made_at.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.place)
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return func(*args, **kwargs)
