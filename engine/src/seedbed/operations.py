"""Operations that run in a model: where they were called, and which are refused.

Deterministic algorithms refuse some operations, under the names in PyTorch 2.15's error
messages.
"""

import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seedbed import fingerprint, project
from seedbed.errors import InputError, one_line

REFUSED = re.compile(r"([\w ]+) does not have a deterministic implementation")
_NO_BFLOAT16 = "could not create a primitive descriptor for the LSTM"
# What PyTorch's layers say of inputs that they do not take, and of dtypes.
_MISFIT = re.compile(
    r"shapes cannot be multiplied|expected input|Expected \dD|must be equal to"
    r" input_size|should contain \d+ elements|does not match weight size"
)
_NAMES = {
    torch.float64: r"[Dd]ouble|float64|mixed dtype",
    torch.float16: r"[Hh]alf|float16|mixed dtype",
    torch.int64: r"[Ll]ong|int64",
    torch.int32: r"[Ii]nt\b|int32",
    torch.uint8: r"Byte|unsigned char|uint8",
}
_TORCH = str(Path(torch.__file__).parent)
# What to do about refusals of PyTorch that no replacement can help.
_ADVICE = {
    r"cuDNN SDPA|cudnn_attention|num_splits_key": (
        "use another attention kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    ),
    r"CuBLAS|CUBLAS_WORKSPACE_CONFIG": (
        "use CUBLAS_WORKSPACE_CONFIG=:4096:8, set before Python starts"
    ),
}


@dataclass(frozen=True)
class Place:
    """Where in a model an operation was called."""

    # path of the innermost one, such as `features.3`; empty for the model itself
    module: str
    line: str  # `file:line` in user code; empty if it was not called from there
    phase: str  # forward, backward or update

    def __str__(self) -> str:
        module = f" in module {self.module}" if self.module else ""
        return f"{self.phase} pass{module}" + (f", {self.line}" if self.line else "")


class Places(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Tracks the place of the running operation, and of the first that failed.

    A backward pass has no Python stack, so the place is that of the forward operation,
    found by the sequence number that autograd assigns to differentiable operations.
    """

    def __init__(self, model: nn.Module | None) -> None:
        """Name the modules of a model; none if it is being built."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.place = Place("", "", "forward")
        self.failed: Place | None = None
        self._made_at = dict[int, Place]()
        modules = [] if model is None else model.named_modules()
        self._names = {id(module): name for name, module in modules}

    def locate(self, frames: Iterable[tuple[FrameType, int]]) -> Place:
        """Return the place of an operation called from stack frames, outermost
        first."""
        frames = list(frames)
        module = ""
        phase = "forward"
        for frame, _ in frames:
            file = frame.f_code.co_filename
            owner = self._names.get(id(frame.f_locals.get("self")))
            # during an optimizer's step, a closure calls the model
            if owner is not None:
                module = owner
                phase = "forward" if phase == "update" else phase
            if frame.f_code.co_name == "backward" and file.startswith(_TORCH):
                phase = "backward"
            if "torch/optim" in file or "clip_grad" in file:
                phase = "update"
        line = project.line_in(frames, or_of_a_library=True)
        return Place("" if phase == "update" else module, line, phase)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Record the place of an operation and run it."""
        node = torch._C._current_autograd_node()
        if node is not None:
            made = self._made_at.get(node._sequence_nr(), Place("", "", "backward"))
            self.place = replace(made, phase="backward")
        else:
            frames = list(traceback.walk_stack(sys._getframe(1)))
            if any(
                frame.f_code.co_filename == fingerprint.__file__ for frame, _ in frames
            ):
                # not part of a step: it hashes results
                return func(*args, **(kwargs or {}))
            self.place = self.locate(reversed(frames))
            # A differentiable operation has just been assigned the previous number. For
            # any other, that number belongs to an earlier operation, whose place is
            # kept.
            self._made_at.setdefault(
                torch._C._autograd._get_sequence_nr() - 1, self.place
            )
        try:
            return self.run(func, args, kwargs or {})
        except RuntimeError:  # note it now: others may run while the stack unwinds
            self.failed = self.failed or self.place
            raise

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return func(*args, **kwargs)


@contextmanager
def explained(
    model: nn.Module | None = None, repeat: Callable[[], object] | None = None
) -> Iterator[None]:
    """Turn PyTorch's refusal of an operation or of inputs into an InputError with
    place and advice.

    `repeat` runs the same code again, to find the place of a refusal in the backward
    pass.
    """
    try:
        yield
    except (RuntimeError, ValueError) as error:
        message = str(error)
        if not (_NO_BFLOAT16 in message or REFUSED.search(message)):
            if line := misfit(error, model):
                raise InputError(line) from error
            raise
        places = Places(model)
        place = places.locate(traceback.walk_tb(error.__traceback__))
        if _NO_BFLOAT16 in message:
            raise InputError(
                "trainer.precision: expected float32 for an LSTM on a processor"
                " without 16-bit instructions, got bfloat16 or float16, in the"
                f" {place}; or set determinism.mkldnn.enabled=false, which is slower"
            ) from None
        if place.phase == "backward" and repeat is not None:
            with suppress(RuntimeError), places:
                repeat()
            place = places.failed or place
        operation, instead = describe(message)
        raise InputError(
            f"{operation}: expected an operation with a deterministic implementation,"
            f" got none, in the {place}; {instead}, or set"
            " determinism.on_nondeterministic=warn"
        ) from None


def misfit(error: Exception, model: nn.Module | None) -> str | None:
    """Return an error line for inputs that the model does not take; None for other
    errors.

    What a module was called with is in the frames of the traceback.
    """
    calls = [
        (frame.f_locals["self"], tensors)
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == "_call_impl"
        and (tensors := _tensors(frame.f_locals.get("args")))
    ]
    if model is None or not calls:
        return None
    message = str(error)
    place = Places(model).locate(traceback.walk_tb(error.__traceback__))
    dtypes = {parameter.dtype for parameter in model.parameters()}
    for tensor in calls[0][1]:
        names = _NAMES.get(tensor.dtype)
        if tensor.dtype in dtypes or not names or not re.search(names, message):
            continue
        return (
            "data.train: expected inputs of the dtype of the model's weights,"
            f" {', '.join(sorted(map(_dtype, dtypes)))}, got {_dtype(tensor.dtype)}"
            f" {tuple(tensor.shape)} in the {place}; convert them in the data set:"
            " .float(), or in NumPy .astype(np.float32)"
        )
    layer, (tensor, *_) = calls[-1]
    if not _MISFIT.search(message) or not type(layer).__module__.startswith("torch."):
        return None
    shown = " ".join(str(layer).split())[:120]
    return (
        f"model: expected inputs that {shown} takes, got {tuple(tensor.shape)} in the"
        f" {place} ({one_line(error)}); give the model the size of the samples"
    )


def _tensors(nest: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, torch.Tensor)]


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def describe(message: str) -> tuple[str, str]:
    """Return the operation that PyTorch's error message names, and what to do."""
    refused = REFUSED.search(message)
    operation = refused[1].strip() if refused else message.splitlines()[0]
    advice = (text for pattern, text in _ADVICE.items() if re.search(pattern, message))
    return operation, next(
        advice, "docs/replaced.md has what determinism.replace=true replaces"
    )


def check_recurrent_dropout(model: nn.Module, device_type: str) -> None:
    """Raise InputError for dropout inside a recurrent module on a GPU.

    cuDNN hides the state of that dropout: seeding it later has no effect, and a
    checkpoint cannot store it (https://github.com/pytorch/pytorch/issues/74177).
    """
    for name, module in model.named_modules():
        inside = (
            isinstance(module, nn.RNNBase)
            and module.num_layers > 1
            and module.dropout > 0
        )
        if inside and device_type == "cuda":
            raise InputError(
                f"model: expected no dropout inside cuDNN under strict, got {module} as"
                f" {name or 'the model'}; put nn.Dropout between"
                f" {type(module).__name__}s of one layer, or choose determinism=seeded"
            )
