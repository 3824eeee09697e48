"""Learning rates as a pure function of the step: nothing to save, nothing to restore."""

import math
from collections.abc import Mapping
from typing import Any

import torch


def factor(step: int, total_steps: int, warmup_fraction: float, final_fraction: float) -> float:
    """Return what the peak learning rate is multiplied by in one step.

    It rises linearly from 1/25 of the peak over the first `warmup_fraction` of the steps, then
    falls along half a cosine to `final_fraction` of the peak in the last step. A
    `final_fraction` of 1 makes it constant after the warm-up.

    Args:
        step: 0 to total_steps - 1.
    """
    warmup_steps = warmup_fraction * total_steps
    if step < warmup_steps:
        return 1 / 25 + (1 - 1 / 25) * step / warmup_steps
    progress = (step - warmup_steps) / max(total_steps - 1 - warmup_steps, 1)
    return final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * min(progress, 1))) / 2


def set_learning_rates(optimizers: Mapping[str, torch.optim.Optimizer], factor: float) -> None:
    """Set each group's learning rate to its peak times a factor."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def learning_rates(optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Any]:
    """Return the learning rate of each group, by a name that no other group has."""
    found = {}
    for name, optimizer in optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            label = str(group.get("name", number))
            alone = len(optimizer.param_groups) == 1
            several = len(optimizers) > 1
            found[name if alone else f"{name}_{label}" if several else label] = group["lr"]
    return found
