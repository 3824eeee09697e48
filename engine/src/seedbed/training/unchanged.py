"""What looks at a model leaves it as it was: evaluations, callbacks, slices of a batch."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import fingerprint
from seedbed.errors import InputError


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and each of its modules back into the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        # Some models do more than note their mode: those that merge adapters, for instance.
        for module, mode in modes:
            if module.training != mode:
                module.train(mode)


@contextmanager
def unchanged(
    model: nn.Module, refusal: str, others: Sequence[Tensor] = (), by_bits: bool = True
) -> Iterator[None]:
    """Give the modes of modules back; refuse what changes weights, buffers or other tensors.

    Args:
        refusal: the message.
        by_bits: compare bits; otherwise see what leaves a trace, which `tensor.data` does not.
    """

    def traces() -> list[int]:
        tensors = [*model.parameters(), *model.buffers(), *others]
        if by_bits:
            return [int(fingerprint.of_tensors(tensors))]
        return [tensor._version for tensor in tensors]

    modes = [(module, module.training) for module in model.modules()]
    before = traces()
    yield
    for module, mode in modes:
        module.training = mode
    if traces() != before:
        raise InputError(refusal)


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
