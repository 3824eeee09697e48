"""What looks at a model leaves it as it was: evaluations, callbacks, slices of a batch."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from seedbed import fingerprint
from seedbed.errors import InputError


@contextmanager
def evaluating(model: nn.Module, may_change: bool = True) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back into the mode it was in.

    Raises:
        InputError: weights or buffers have other bits afterwards, and may not.
    """

    def bits() -> int:  # without caches: buffers that `state_dict` leaves out
        return int(fingerprint.of_tensors(filter(torch.is_tensor, model.state_dict().values())))

    modes = [(module, module.training) for module in model.modules()]
    before = None if may_change else bits()
    model.eval()
    try:
        yield
    finally:
        # Some models do more than note their mode: those that merge adapters, for instance.
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)
    if before is not None and bits() != before:
        raise InputError(
            "model: expected an evaluation that leaves weights and buffers as they are, got a "
            f"{type(model).__name__} that changes them; change them in training mode alone, or say "
            "determinism.on_nondeterministic=warn"
        )


@torch.no_grad()
def bits_of_state(model: nn.Module) -> dict[str, Any]:
    """Return by name what tells state with other bits apart: buffers, weights, extra states."""
    tensors = dict(model.named_buffers()) | dict(model.named_parameters())
    hashes = fingerprint.of_lists([[each] for each in tensors.values()]).tolist() if tensors else []
    kinds = ((each.dtype, tuple(each.shape)) for each in tensors.values())
    bits: dict[str, Any] = dict(zip(tensors, zip(kinds, hashes, strict=True), strict=True))
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            bits[f"{path}.get_extra_state()".lstrip(".")] = pickle.dumps(module.get_extra_state())
    return bits
