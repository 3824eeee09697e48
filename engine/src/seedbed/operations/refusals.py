"""Operations that deterministic algorithms refuse: which one, where in the model, what instead."""

import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from seedbed.errors import InputError
from seedbed.operations.place import REFUSED, Place, is_refusal, locate, names_of
from seedbed.operations.substitutes import substitute_for
from seedbed.operations.trace import traced

_OTHER_DTYPES = re.compile(r"(?i)double|float64|share same datatype")
_WRONG_STRIDES = "view size is not compatible with input tensor's size and stride"


@contextmanager
def explained(
    model: nn.Module | None = None,
    channels_last: bool = False,
    repeat: Callable[[], object] | None = None,
) -> Iterator[None]:
    """Say what to use instead where PyTorch refuses an operation, a `view`, float64, an update.

    Args:
        model: to name the module; None while it is being built.
        channels_last: whether images come in that memory order.
        repeat: does the same once more. A backward pass has no stack of its own to look at, so
            its place is found by tracing every operation of another forward pass.

    Raises:
        InputError: it names operation, place and substitute.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:  # recurrent modules raise the other one
        if is_refusal(error):
            raise _refusal(error, model, repeat) from None
        if _OTHER_DTYPES.search(str(error)) and (double := _double_inputs(error, model)):
            raise double from None
        if channels_last and _WRONG_STRIDES in str(error):
            raise _refused_view(error, model) from None
        if refused := _not_updated(error):
            raise refused from None
        raise


def _refusal(
    error: Exception, model: nn.Module | None, repeat: Callable[[], object] | None
) -> InputError:
    place = locate(traceback.walk_tb(error.__traceback__), model)
    if place.phase == "backward" and model is not None and repeat is not None:
        place = _backward_place(model, repeat)
    operation, instead = _describe(str(error))
    return InputError(
        f"{operation}: expected an operation with a deterministic implementation, got none, in "
        f"the {place}; {instead}, or say determinism.on_nondeterministic=warn"
    )


def _refused_view(error: Exception, model: nn.Module | None) -> InputError:
    place = locate(traceback.walk_tb(error.__traceback__), model)
    return InputError(
        f"model: expected an operation for any memory order, got view, in the {place}; use "
        "reshape or flatten(1) there, or set determinism.channels_last=false, which leaves images "
        "in the order that they come in"
    )


def _double_inputs(error: Exception, model: nn.Module | None) -> InputError | None:
    """Return the error of a batch with inputs in float64 for a model in float32; None of others."""
    own = (*model.parameters(), *model.buffers()) if model else ()
    dtypes = {tensor.dtype for tensor in own if tensor.is_floating_point()}
    frames = traceback.walk_tb(error.__traceback__)
    inputs = (getattr(frame.f_locals.get("batch"), "inputs", None) for frame, _ in frames)
    batch = next((each for each in inputs if each is not None), None)
    found = {each.dtype for each in tree_leaves(batch) if isinstance(each, torch.Tensor)}
    if dtypes != {torch.float32} or torch.float64 not in found:
        return None
    return InputError(
        "data: expected inputs of the model's dtype, float32, got float64, NumPy's default; let "
        "the data set return x.astype(np.float32), or x.float() of a tensor"
    )


def _not_updated(error: Exception) -> InputError | None:
    """Return the error of one of PyTorch's optimizers that cannot update; None of others.

    With sparse gradients, say, or complex parameters: not all of them take these.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not frames[-1].f_globals.get("__name__", "").startswith("torch.optim."):
        return None
    owners = (frame.f_locals.get("self") for frame in frames)
    names = [type(each).__name__ for each in owners if isinstance(each, torch.optim.Optimizer)]
    if not names:  # a schedule, say
        return None
    is_fused = "fused" in str(error)
    cure = "say optimizer.fused=false" if is_fused else "choose another, or change its settings"
    return InputError(
        f"optimizer: expected parameters and gradients that {names[0]} can update, got others "
        f"({error}); {cure}"
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
        if not REFUSED.search(str(message)):
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
    entered = [""]
    with _watched(model, entered), traced(model, stops=True) as events, suppress(RuntimeError):
        repeat()
    # What is refused above the preset of operations is in no event.
    return next((e.place for e in events if e.refusal), Place(entered[0], "", "backward"))


@contextmanager
def _watched(model: nn.Module, entered: list[str]) -> Iterator[None]:
    """Keep in a list of one the path of the module whose backward pass began last."""
    names = names_of(model)

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


def _describe(text: str) -> tuple[str, str]:
    found = REFUSED.search(text)
    operation = found[1].strip().split("\n")[-1] if found else text.splitlines()[0]
    instead = substitute_for(text)
    return operation, f"use {instead}" if instead else "no substitute is known"
