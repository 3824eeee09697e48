"""State and shards: what a forward pass changes would depend on who sees which slice of a batch."""

import pickle
from collections.abc import Mapping
from typing import Any

from torch import nn

from seedbed.errors import InputError
from seedbed.training import held


def refuse_running_statistics(model: nn.Module) -> None:
    """Refuse layers whose running statistics would depend on who saw which slice.

    A layer in evaluation mode, as in a frozen part, only reads them.

    Raises:
        InputError: it names the first one.
    """
    for path, module in model.named_modules():
        is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
        if is_norm and module.track_running_stats and module.training:
            raise InputError(
                f"model.{path}: expected no running statistics with trainer.shards > 1, got "
                f"{type(module).__name__}, which would see one slice of a batch at a time; use "
                "GroupNorm, or track_running_stats=False, or trainer.shards=1"
            )


def refuse_changes(
    model: nn.Module, before: dict[str, Any], without: Mapping[str, Any] | None = None
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
                "trainer.shards > 1, where processes share slices and batches, got one that does; "
                "make it in __init__ if it is the same for all inputs, or use trainer.shards=1"
            )


def bits_of_state(model: nn.Module, without: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what tells state with other bits apart, by name: weights, buffers, extra states.

    Args:
        without: weights to leave out, by name: updates change those that are trained.
    """
    chosen = {name: p for name, p in model.named_parameters() if name not in (without or {})}
    kept = {**dict(model.named_buffers()), **chosen}
    found: dict[str, Any] = dict(zip(kept, held.bits_of(list(kept.values())), strict=True))
    for path, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            found[f"{path}.get_extra_state()".lstrip(".")] = pickle.dumps(module.get_extra_state())
    return found
