"""What looks at a model leaves it as it was: evaluations, callbacks, slices of a batch."""

import pickle
from collections.abc import Iterator, Mapping, Sequence
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
    """Give the modes of modules back; refuse what changes parameters, buffers or other tensors.

    Args:
        refusal: the message.
        by_bits: compare bits; otherwise see what leaves a trace, which `tensor.data` does not.

    Raises:
        InputError: something changed. Nothing is put back: no copy is kept.
    """
    modes = [(module, module.training) for module in model.modules()]
    before = _traces(model, others, by_bits)
    yield
    for module, mode in modes:
        module.training = mode
    if _traces(model, others, by_bits) != before:
        raise InputError(refusal)


def _traces(model: nn.Module, others: Sequence[Tensor], by_bits: bool) -> list[int]:
    tensors = [*model.parameters(), *model.buffers(), *others]
    if by_bits:
        return [int(fingerprint.of_tensors(tensors))]
    return [tensor._version for tensor in tensors]


@torch.no_grad()
def bits_of_state(model: nn.Module, without: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what tells state with other bits apart, by name: weights, buffers, extra states.

    Args:
        without: weights to leave out, by name: updates change those that are trained.
    """
    tensors: dict[str, Tensor] = dict(model.named_buffers())
    tensors |= {name: p for name, p in model.named_parameters() if name not in (without or {})}
    hashes = fingerprint.of_lists([[each] for each in tensors.values()]).tolist() if tensors else []
    kinds = ((each.dtype, tuple(each.shape)) for each in tensors.values())
    found: dict[str, Any] = dict(zip(tensors, zip(kinds, hashes, strict=True), strict=True))
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            found[f"{path}.get_extra_state()".lstrip(".")] = pickle.dumps(module.get_extra_state())
    return found


def refuse_changes(
    model: nn.Module, before: Mapping[str, Any], without: Mapping[str, Any] | None = None
) -> None:
    """Refuse a model whose forward pass changes its state: how often depends on who has a slice.

    Args:
        before: what `bits_of_state` gave before the forward passes.
        without: what was left out of it.

    Raises:
        InputError: it names the first one.
    """
    now = bits_of_state(model, without)
    for path in {**now, **before}:
        if before.get(path) != now.get(path):
            raise InputError(
                f"model.{path}: expected state that no forward pass changes with "
                "trainer.shards > 1, where processes share the slices of a batch, got one that "
                "does; use GroupNorm for BatchNorm, make buffers in __init__, or set "
                "trainer.shards=1"
            )
