"""Which parameters a step trains: those that the method names, of those that were to be trained."""

from collections.abc import Iterable
from fnmatch import filter
from functools import lru_cache
from typing import NamedTuple

from torch import nn

from seedbed.errors import InputError
from seedbed.training.state import TrainingState


class Update(NamedTuple):
    """One of the updates of a step."""

    step: int
    number: int  # its place in their order, from 0
    optimizer: str  # the name of the one that makes it
    parameters: list[nn.Parameter]  # those that it trains


def choose(training: TrainingState, step: int) -> None:
    """Let the parameters of a step need gradients, and no others of the optimizers'."""
    if not training.overrides("trainable"):
        return
    named = named_by(training, training.method.trainable(step))
    for name, parameter in training.to_train.items():
        needed = named is None or name in named
        if parameter.requires_grad != needed:
            parameter.requires_grad_(needed)
            parameter.grad = None  # an optimizer passes over parameters without


def named_by(training: TrainingState, patterns: Iterable[str] | None) -> frozenset[str] | None:
    """Return the parameters that fit patterns, each of which some parameter must fit."""
    if patterns is None:
        return None
    names = tuple(training.to_train)
    fits = _fits(names, tuple(map(str, patterns)))
    for pattern, fitting in fits.items():
        if not fitting:
            raise InputError(
                "method: expected patterns that parameters fit from "
                f"{type(training.method).__name__}.trainable, got {pattern!r}, which none of "
                f"{', '.join(names[:4])}, ... does"
            )
    return frozenset().union(*fits.values())


@lru_cache(maxsize=4)  # most steps train what the step before did
def _fits(names: tuple[str, ...], patterns: tuple[str, ...]) -> dict[str, list[str]]:
    return {pattern: filter(names, pattern) for pattern in patterns}


def updates_of(training: TrainingState, step: int) -> list[Update]:
    """Return the updates of a step, in order, but for those whose parameters are all frozen."""
    for parameters in training.parameters_of.values():
        for parameter in parameters:
            if not parameter.requires_grad:
                parameter.grad = None  # an optimizer would move by the last one for ever
    names = training.method.updates(step, list(training.optimizers))
    updates = [
        Update(step, number, name, [p for p in training.parameters_of[name] if p.requires_grad])
        for number, name in enumerate(names)
    ]
    if not any(update.parameters for update in updates):
        raise InputError(
            f"method: expected parameters to train in step {step}, got updates of "
            f"{', '.join(names)}, whose are all frozen"
        )
    return [update for update in updates if update.parameters]
