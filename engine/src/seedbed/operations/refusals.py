"""Errors for operations that deterministic algorithms refuse: name, place and substitute."""

import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from torch import nn

from seedbed.errors import InputError
from seedbed.operations.place import Places, locate, names_of
from seedbed.operations.substitutes import substitute_for

REFUSED = re.compile(r"(.*?) does not have a deterministic implementation")
_NO_BFLOAT16 = "could not create a primitive descriptor for the LSTM"


@contextmanager
def explained(
    model: nn.Module | None = None, repeat: Callable[[], object] | None = None
) -> Iterator[None]:
    """Turn PyTorch's refusal of an operation into an InputError with place and substitute.

    Args:
        model: to name the module; None while it is being built.
        repeat: runs the same code again, to find the place of a refusal in the backward pass.
    """
    try:
        yield
    except RuntimeError as error:
        message = str(error)
        if not (_NO_BFLOAT16 in message or REFUSED.search(message)):
            raise
        place = locate(traceback.walk_tb(error.__traceback__), names_of(model))
        if _NO_BFLOAT16 in message:
            raise InputError(
                "trainer.precision: expected float32 for an LSTM on a processor without bfloat16 "
                f"instructions, got bfloat16, in the {place}; or set "
                "determinism.mkldnn.enabled=false, which is slower"
            ) from None
        if place.phase == "backward" and repeat is not None:
            with suppress(RuntimeError), (places := Places(model)):
                repeat()
            place = places.failed or place
        operation, instead = describe(message)
        raise InputError(
            f"{operation}: expected an operation with a deterministic implementation, got none, in "
            f"the {place}; {instead}, or set determinism.on_nondeterministic=warn"
        ) from None


def describe(message: str) -> tuple[str, str]:
    """Return the operation that PyTorch's error message names, and advice on a substitute."""
    refused, instead = REFUSED.search(message), substitute_for(message)
    operation = refused[1].strip() if refused else message.splitlines()[0]
    return operation, f"use {instead}" if instead else "no substitute is known"


def check_recurrent_dropout(model: nn.Module, device_type: str) -> None:
    """Raise InputError for dropout inside a recurrent module on a GPU.

    cuDNN hides the state of that dropout: seeding it later has no effect, and a checkpoint cannot
    store it (https://github.com/pytorch/pytorch/issues/74177).
    """
    for name, module in model.named_modules():
        inside = isinstance(module, nn.RNNBase) and module.num_layers > 1 and module.dropout > 0
        if inside and device_type == "cuda":
            raise InputError(
                f"model: expected no dropout inside cuDNN under strict, got {module} as "
                f"{name or 'the model'}; put nn.Dropout between {type(module).__name__}s of one "
                "layer, or choose determinism=seeded"
            )
