"""Where in a model a replaced operation is called, for the line that the first call prints."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from seedbed import project

_names = dict[int, str]()  # of the modules of a model, by identity
_calls = list[tuple[range, str]]()  # numbers of the operations that autograd records in a module


def set_model(model: nn.Module) -> None:
    """Let places have the names of a model's modules."""
    _names.clear()
    _names.update((id(each), f"model.{name}".rstrip(".")) for name, each in model.named_modules())


@contextmanager
def noted() -> Iterator[None]:
    """Note the calls of modules, so that operations of their backward passes can be located."""
    began, number = dict[int, int](), torch._C._autograd._get_sequence_nr

    def enter(module: nn.Module, args: Any) -> None:
        began[id(module)] = number()

    def leave(module: nn.Module, args: Any, output: Any) -> None:  # the innermost comes first
        numbers = range(began.pop(id(module), number()), number())
        if id(module) in _names and numbers:
            forward = getattr(type(module), "forward", None)  # which TorchScript's class lacks
            code: Any = getattr(forward, "__code__", None)
            if code is None or project.is_installed(code.co_filename):
                line = _line()
            else:
                line = f"{code.co_filename}:{code.co_firstlineno}"
            _calls.append((numbers, f" in {_names[id(module)]}, {line}"))

    removable = hooks.register_module_forward_pre_hook(enter)
    removable_too = hooks.register_module_forward_hook(leave)
    try:
        yield
    finally:
        removable.remove()
        removable_too.remove()
        _calls.clear()


def place() -> str:
    """Return module and line of user code that called the running operation, as far as known."""
    node = torch._C._current_autograd_node()
    if node is not None:
        made_in = (text for numbers, text in _calls if node._sequence_nr() in numbers)
        return next(made_in, ", in the backward pass")
    frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
    owners = (_names.get(id(frame.f_locals.get("self"))) for frame in frames)
    owner = next(filter(None, owners), "")
    return (f" in {owner}" if owner else "") + f", {_line()}"


def _line() -> str:
    """Return the innermost line of user code that is running."""
    for frame, line in traceback.walk_stack(sys._getframe(1)):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if not (module.startswith("seedbed.") or project.is_installed(file)):
            return f"{file}:{line}"
    return "in a library"
