"""Learning rates: a pure function of the step, or lowered where validations bring no
gain."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from torch.optim.lr_scheduler import LRScheduler
from torch.utils._pytree import tree_leaves

from seedbed.config import build
from seedbed.config.settings import Plateau
from seedbed.errors import InputError
from seedbed.record import Monitor
from seedbed.training.optimizers import Optimizers

# for all groups, or by the name of a group or optimizer
Factor = float | Mapping[str, float]


def factor(
    step: int, total_steps: int, warmup_steps: float, final_fraction: float = 1.0
) -> float:
    """Return the factor by which the peak learning rate is multiplied in step 0 to
    total_steps - 1.

    It rises linearly from 1/25 of the peak over the first `warmup_steps`, then falls
    along half a cosine to `final_fraction` of the peak in the last step; 1 keeps the
    peak. A fraction of 0 would train nothing: it is reached one step later, as in
    `torch.optim.lr_scheduler.CosineAnnealingLR`.
    """
    if step < warmup_steps:
        return 1 / 25 + (1 - 1 / 25) * step / warmup_steps
    end = total_steps - 1 if final_fraction else total_steps
    rest = end - warmup_steps
    # a run of one step
    progress = min((step - warmup_steps) / rest, 1) if rest > 0 else 0
    return (
        final_fraction + (1 - final_fraction) * (1 + math.cos(math.pi * progress)) / 2
    )


def of_settings(
    schedule: Mapping[str, Any], total_steps: int, steps_per_epoch: int
) -> Callable[[int], Factor]:
    """Return a function from a step to its factor, built from the section `schedule`.

    Its `_target_`, if any, is a function of (step, total_steps), or a class with such a
    `factor`; one with a parameter `steps_per_epoch` gets that, too.
    """
    if "_target_" not in schedule:
        warmup = warmup_steps(schedule, total_steps, steps_per_epoch)
        final = schedule.get("final_fraction", 1.0)
        return partial(
            factor, total_steps=total_steps, warmup_steps=warmup, final_fraction=final
        )
    if isinstance(build.resolve(schedule["_target_"], "schedule"), type):
        function = build.build(schedule, "schedule").factor
    else:
        function = build.build({**schedule, "_partial_": True}, "schedule")
    if "steps_per_epoch" in inspect.signature(function).parameters:
        function = partial(function, steps_per_epoch=steps_per_epoch)
    return partial(function, total_steps=total_steps)


def warmup_steps(
    schedule: Mapping[str, Any], total_steps: int, steps_per_epoch: int
) -> float:
    """Return the length of the warm-up, by the first of its three keys that is set."""
    if schedule.get("warmup_steps") is not None:
        return float(schedule["warmup_steps"])
    if schedule.get("warmup_epochs") is not None:
        return float(schedule["warmup_epochs"] * steps_per_epoch)
    return float(schedule["warmup_fraction"] * total_steps)


def set_learning_rates(optimizers: Optimizers, factor: Factor) -> None:
    for label, name, group in _groups(optimizers):
        group_factor: Any = factor
        if isinstance(factor, Mapping):
            group_factor = factor[label if label in factor else name]
        peak = group.setdefault("initial_lr", group["lr"])
        group["lr"] = peak * (group_factor * group.get("plateau_factor", 1.0))


def note_validation(
    plateau: Plateau,
    noted: Mapping[str, float],
    value: float,
    monitor: Monitor,
    optimizers: Optimizers,
) -> dict[str, float]:
    """Return the best value and the validations since, and lower learning rates if it
    is time.

    As `torch.optim.lr_scheduler.ReduceLROnPlateau` with its other arguments at their
    defaults. The factor is kept in parameter groups, so checkpoints restore it with the
    optimizers. `noted` is what the last call returned; {} before the first.
    """
    sign = 1 if monitor.higher_is_better else -1
    best = noted.get("best", -sign * math.inf)
    without_gain = noted.get("without_gain", 0) + 1
    if sign * value > sign * best * (1 + sign * plateau.threshold):
        best = value
        without_gain = 0
    elif without_gain > plateau.patience:
        without_gain = 0
        for _, _, group in _groups(optimizers):
            lowered = group.get("plateau_factor", 1.0) * plateau.factor
            group["plateau_factor"] = max(lowered, plateau.min_factor)
    return {"best": best, "without_gain": without_gain}


def require_none_of_torch(*owners: object) -> None:
    """Raise InputError for a scheduler of PyTorch, whose learning rates would be
    overwritten."""
    for value in tree_leaves([vars(owner) for owner in owners]):
        if isinstance(value, LRScheduler):
            raise InputError(
                "method: expected a schedule of configs/schedule, got"
                f" {type(value).__name__}, which has no effect; choose"
                " schedule=plateau, or write a function of the step"
            )


def learning_rates(optimizers: Optimizers) -> dict[str, Any]:
    return {label: group["lr"] for label, _, group in _groups(optimizers)}


def _groups(optimizers: Optimizers) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield a distinct label, the optimizer's name and the group, for each parameter
    group."""
    for name, optimizer in optimizers.items():
        groups = optimizer.param_groups
        for number, group in enumerate(groups):
            group_name = str(group.get("name", number))
            label = (
                name
                if len(groups) == 1
                else f"{name}_{group_name}"
                if len(optimizers) > 1
                else group_name
            )
            yield label, name, group
