"""Buffers and shards: running statistics would depend on who sees which slice of a batch."""

from typing import Any

from torch import nn

from seedbed.errors import InputError
from seedbed.training import held


def refuse_running_statistics(model: nn.Module) -> None:
    """Refuse layers whose running statistics would depend on who saw which slice.

    Raises:
        InputError: it names the first one.
    """
    for path, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
            raise InputError(
                f"model.{path}: expected no running statistics with trainer.shards > 1, got "
                f"{type(module).__name__}, which would see one slice of a batch at a time; use "
                "GroupNorm, or track_running_stats=False, or trainer.shards=1"
            )


def refuse_changes(model: nn.Module, before: dict[str, Any]) -> None:
    """Refuse a model whose forward pass changes a buffer: how often depends on who has a slice.

    Args:
        before: what `bits_of_buffers` gave before the forward passes.

    Raises:
        InputError: it names the first one.
    """
    now = bits_of_buffers(model)
    for path in {**now, **before}:
        if before.get(path) != now.get(path):
            raise InputError(
                f"model.{path}: expected a buffer that no forward pass changes with "
                "trainer.shards > 1, got one that slices of a batch change; make it in __init__ if "
                "it is the same for all inputs, or use trainer.shards=1"
            )


def bits_of_buffers(model: nn.Module) -> dict[str, Any]:
    """Return what tells a buffer with other bits apart, by its name."""
    buffers = dict(model.named_buffers())
    return dict(zip(buffers, held.bits_of(list(buffers.values())), strict=True))
