"""Places in a model: where an operation was called, in the forward or the backward pass."""

import runpy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import nn

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
