"""Operations that deterministic algorithms refuse: which one, where in the model, what instead."""

import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import torch
from torch import nn

from seedbed.errors import InputError
from seedbed.operations.place import REFUSED, Place, is_refusal, is_users, locate, names_of
from seedbed.operations.substitutes import substitute_for

_FRAME = re.compile(r'  File "(.+)", line (\d+)')
_WRONG_STRIDES = "view size is not compatible with input tensor's size and stride"


@contextmanager
def explained(
    model: nn.Module | None = None,
    channels_last: bool = False,
    repeat: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Say what to use instead where PyTorch refuses an operation, or a `view` of images.

    Args:
        model: to name the module; None while it is being built.
        channels_last: whether images come in that memory order.
        repeat: does the same once more. A backward pass has no stack of its own to look at, so
            its place is found by PyTorch's anomaly detection.

    Raises:
        InputError: it names operation, place and substitute.
    """
    try:
        yield
    except RuntimeError as error:
        is_view = channels_last and _WRONG_STRIDES in str(error)
        if not is_refusal(error) and not is_view:
            raise
        place = locate(traceback.walk_tb(error.__traceback__), model)
        if is_view:
            raise InputError(
                f"model: expected an operation for any memory order, got view, in the {place}; use "
                "reshape or flatten(1) there, or set determinism.channels_last=false, which leaves "
                "images in the order that they come in"
            ) from None
        if place.phase == "backward" and model is not None and repeat is not None:
            place = _backward_place(model, repeat)
        operation, instead = _describe(str(error))
        raise InputError(
            f"{operation}: expected an operation with a deterministic implementation, got none, in "
            f"the {place}; {instead}, or say determinism.on_nondeterministic=warn"
        ) from None


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


def computes_bfloat16() -> bool:
    """Return whether this processor has instructions for bfloat16, as oneDNN uses them.

    `ONEDNN_MAX_CPU_ISA` counts. True where PyTorch does not say.
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return supported is None or bool(supported())


def check_precision(model: nn.Module, device_type: str, autocast: bool) -> None:
    """Refuse an LSTM in bfloat16 on a processor for which oneDNN has none.

    Args:
        autocast: whether the model computes in bfloat16.
    """
    onednn = device_type == "cpu" and torch.backends.mkldnn.enabled
    if not autocast or not onednn or computes_bfloat16():
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
    """Say once for each operation and place what deterministic algorithms warn of meanwhile.

    Of a backward pass no module is named: PyTorch warns of its kernels when the pass is over.
    """
    seen: set[str] = set()
    show = warnings.showwarning

    def hook(message: Any, category: Any, *rest: Any, **named: Any) -> None:
        if not REFUSED.search(str(message)):
            show(message, category, *rest, **named)
            return
        operation, instead = _describe(str(message))
        place = locate(reversed([*traceback.walk_stack(sys._getframe(1))]), model)
        line = f"warning: {operation} may differ from run to run: {place}; {instead}"
        if line not in seen:
            seen.add(line)
            log(line)

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=".*deterministic implementation")
        warnings.showwarning = hook
        yield


def _backward_place(model: nn.Module, repeat: Callable[[], object]) -> Place:
    """Repeat a refused step; return the place in the forward pass whose backward pass it was in.

    The line is that of PyTorch's anomaly detection. The module is the one whose backward pass began
    last, if the operation is one of its own.
    """
    names, entered = names_of(model), [""]

    def log_end(module: nn.Module, _inputs: object, output: object) -> None:
        node = getattr(output, "grad_fn", None)
        # A module inside this one may have ended with the same operation; it is the place then.
        if node is not None and "module" not in node.metadata:
            name = node.metadata["module"] = names[id(module)]
            node.register_prehook(lambda _gradients: entered.__setitem__(0, name))

    with ExitStack() as stack:
        for each in model.modules():
            stack.callback(each.register_forward_hook(log_end).remove)
        caught = stack.enter_context(warnings.catch_warnings(record=True))
        warnings.simplefilter("always")
        with torch.autograd.detect_anomaly(check_nan=False), suppress(RuntimeError):
            repeat()
    texts = [str(each.message) for each in caught]
    trace = next((text for text in texts if "Traceback of forward call" in text), "")
    frames = [(file, int(line)) for file, line in _FRAME.findall(trace)]
    own = [f"{file}:{line}" for file, line in frames if is_users(file)]
    module = dict(model.named_modules())[entered[0]]
    return Place(entered[0] if _runs_in(frames, module) else "", own[-1] if own else "", "backward")


def _runs_in(frames: Sequence[tuple[str, int]], module: nn.Module) -> bool:
    """Return whether a line of a stack is one of a module's class."""
    try:
        lines, first = inspect.getsourcelines(type(module))
        path = inspect.getfile(type(module))
    except (OSError, TypeError):  # made without a file
        return False
    return any(file == path and first <= line < first + len(lines) for file, line in frames)


def _describe(text: str) -> tuple[str, str]:
    found = REFUSED.search(text)
    operation = found[1].strip().split("\n")[-1] if found else text.splitlines()[0]
    instead = substitute_for(text)
    return operation, f"use {instead}" if instead else "no substitute is known"
