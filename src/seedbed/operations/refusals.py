"""Operations that deterministic algorithms refuse: which one, where in the model, what instead."""

import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from seedbed.errors import InputError
from seedbed.operations.substitutes import substitute_for

_REFUSED = re.compile(r"(.*?) does not have a deterministic implementation")
_WRONG_STRIDES = "view size is not compatible with input tensor's size and stride"
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parents[1])


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
    return isinstance(error, RuntimeError) and bool(_REFUSED.search(str(error)))


def explain(error: RuntimeError, model: nn.Module, repeat: Callable[[], object]) -> InputError:
    """Return what to tell the user about a refusal: operation, place, substitute.

    A backward pass has no stack of its own to look at, so the step is repeated by `repeat` with
    every operation of the forward pass traced.
    """
    place = locate(traceback.walk_tb(error.__traceback__), model)
    if place.phase == "backward":
        place = _backward_place(model, repeat)
    operation, instead = _describe(str(error))
    return InputError(
        f"{operation}: expected an operation with a deterministic implementation, got none, in "
        f"the {place}; {instead}, or say determinism.on_nondeterministic=warn"
    )


def is_view(error: BaseException) -> bool:
    """Return whether an error is that of `view` on a tensor in another memory order."""
    return isinstance(error, RuntimeError) and _WRONG_STRIDES in str(error)


def explain_view(error: RuntimeError, model: nn.Module) -> InputError:
    """Return what to tell the user about `view` where images are in channels_last."""
    place = locate(traceback.walk_tb(error.__traceback__), model)
    return InputError(
        f"model: expected an operation for any memory order, got view, in the {place}; use "
        "reshape or flatten(1) there, or set determinism.channels_last=false, which leaves images "
        "in the order that they come in"
    )


def check_recurrent_dropout(model: nn.Module, device_type: str) -> None:
    """Refuse dropout inside a recurrent module on a GPU.

    cuDNN keeps the state of that dropout to itself: it follows no seed that is set later, and a
    checkpoint cannot hold it (https://github.com/pytorch/pytorch/issues/74177).
    """
    for name, module in model.named_modules():
        inside = isinstance(module, nn.RNNBase) and module.num_layers > 1 and module.dropout > 0
        if inside and device_type == "cuda":
            raise InputError(
                f"model: expected no dropout inside cuDNN under strict, got {module} as "
                f"{name or 'the model'}; put nn.Dropout between {type(module).__name__}s of one "
                "layer, or choose determinism=seeded"
            )


def check_precision(model: nn.Module, device_type: str, autocast: bool, supported: bool) -> None:
    """Refuse an LSTM in bfloat16 on a processor for which oneDNN has none.

    Args:
        autocast: whether the model computes in bfloat16.
        supported: what `determinism.computes_bfloat16` returns.
    """
    if not autocast or supported or device_type != "cpu" or not torch.backends.mkldnn.enabled:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.LSTM):
            raise InputError(
                f"trainer.precision: expected float32 for {name or 'the model'}, an LSTM, on a "
                "processor without bfloat16 instructions, got bfloat16; choose "
                "trainer.precision=float32, or determinism.mkldnn.enabled=false, which is slower"
            )


@contextmanager
def reported(model: nn.Module, log: Callable[[str], None]) -> Iterator[None]:
    """Say once for each operation and place what deterministic algorithms warn of meanwhile."""
    seen: set[tuple[str, Place]] = set()
    entered = [""]
    show = warnings.showwarning

    def hook(message: Any, category: Any, *rest: Any, **named: Any) -> None:
        if not _REFUSED.search(str(message)):
            show(message, category, *rest, **named)
            return
        operation, instead = _describe(str(message))
        stack = list(traceback.walk_stack(sys._getframe(1)))
        place = locate(reversed(stack), model)
        if place.phase == "backward":
            # What PyTorch's own kernels warn of comes at the end of the whole backward pass.
            who = next(f.f_code for f, _ in stack if f.f_code.co_filename != warnings.__file__)
            is_late = who.co_name == "_engine_run_backward"
            place = replace(place, module="" if is_late else entered[0])
        if (operation, place) not in seen:
            seen.add((operation, place))
            log(f"warning: {operation} may differ from run to run: {place}; {instead}")

    with warnings.catch_warnings(), _watched(model, entered):
        warnings.filterwarnings("always", message=".*deterministic implementation")
        warnings.showwarning = hook
        yield


def _backward_place(model: nn.Module, repeat: Callable[[], object]) -> Place:
    """Repeat a refused step; return the place in the forward pass whose backward pass it was in."""
    from seedbed.operations.tracing import traced  # which imports this module

    entered = [""]
    with _watched(model, entered), traced(model, stops=True) as events, suppress(RuntimeError):
        repeat()
    # What is refused above the preset of operations is in no event.
    return next((e.place for e in events if e.refusal), Place(entered[0], "", "backward"))


@contextmanager
def _watched(model: nn.Module, entered: list[str]) -> Iterator[None]:
    """Keep in a list of one the path of the module whose backward pass began last."""
    names = _names(model)

    def log_end(module: nn.Module, _inputs: object, output: object) -> None:
        node = getattr(output, "grad_fn", None)
        # A module inside this one may have ended with the same operation; it is the place then.
        if node is not None and "module" not in node.metadata:
            name = node.metadata["module"] = names[id(module)]
            node.register_prehook(lambda _gradients: entered.__setitem__(0, name))

    handles = [module.register_forward_hook(log_end) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def locate(frames: Iterable[tuple[FrameType, int]], model: nn.Module) -> Place:
    """Return the place in a model that stack frames, outermost first, lead to."""
    names = _names(model)
    module, line, phase = "", "", "forward"
    for frame, number in frames:
        file = frame.f_code.co_filename
        module = names.get(id(frame.f_locals.get("self")), module)
        if frame.f_code.co_name == "backward" and file.startswith(_TORCH):
            phase = "backward"
        if _is_users(file):
            line = f"{file}:{number}"
    return Place(module, line, phase)


def _is_users(file: str) -> bool:
    """Return whether a file is neither torch's nor Seedbed's own, but for the models it ships."""
    if file.startswith((_TORCH, "<")) or file in (runpy.__file__, warnings.__file__):
        return False
    return not file.startswith(_HERE) or file.startswith(os.path.join(_HERE, "models"))


def _names(model: nn.Module) -> dict[int, str]:
    return {id(module): name for name, module in model.named_modules()}


def _describe(text: str) -> tuple[str, str]:
    found = _REFUSED.search(text)
    operation = found[1].strip().split("\n")[-1] if found else text.splitlines()[0]
    instead = substitute_for(text)
    return operation, f"use {instead}" if instead else "no substitute is known"
