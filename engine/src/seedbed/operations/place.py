"""Places in a model: where an operation was called, and whether PyTorch refused it there."""

import re
import runpy
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import torch
from torch import nn

REFUSED = re.compile(r"(.*?) does not have a deterministic implementation")
_TORCH = str(Path(torch.__file__).parent)
_ENGINE = str(Path(__file__).parents[1])


@dataclass(frozen=True)
class Place:
    """Where in a model an operation was called.

    Attributes:
        module: path of the innermost module, such as `features.3`; empty for the model itself.
        line: `file:line` of the user's code; empty if the operation belongs to none.
        phase: forward or backward.
    """

    module: str
    line: str
    phase: str

    def __str__(self) -> str:
        module = f" in module {self.module}" if self.module else ""
        return f"{self.phase} pass{module}" + (f", {self.line}" if self.line else "")


def is_refusal(error: BaseException) -> bool:
    """Return whether an error is a refusal of deterministic algorithms."""
    return isinstance(error, RuntimeError) and bool(REFUSED.search(str(error)))


def locate(frames: Iterable[tuple[FrameType, int]], model: nn.Module | None) -> Place:
    """Return the place in a model that stack frames, outermost first, lead to.

    Args:
        model: None while it is being built: no module has a path then.
    """
    names = {} if model is None else names_of(model)
    module, line, phase = "", "", "forward"
    for frame, number in frames:
        file = frame.f_code.co_filename
        module = names.get(id(frame.f_locals.get("self")), module)
        if frame.f_code.co_name == "backward" and file.startswith(_TORCH):
            phase = "backward"
        if is_users(file):
            line = f"{file}:{number}"
    return Place(module, line, phase)


def names_of(model: nn.Module) -> dict[int, str]:
    """Return the path of each module of a model, by its id."""
    return {id(module): name for name, module in model.named_modules()}


def is_users(file: str) -> bool:
    """Return whether a file is neither of torch nor of the engine."""
    others = (runpy.__file__, warnings.__file__)
    return not file.startswith((_TORCH, _ENGINE, "<")) and file not in others
