"""Which parameters a step trains: those that the method names, of those that were to be trained."""

from collections.abc import Iterable
from fnmatch import filter as fitting
from functools import lru_cache
from typing import NamedTuple

from torch import nn

from seedbed.errors import InputError
from seedbed.training.state import TrainingState


class Update(NamedTuple):
    """One of the updates of a step.

    Attributes:
        number: its place in their order, from 0.
        optimizer: the name of the optimizer that makes it.
        parameters: those that it trains.
    """

    step: int
    number: int
    optimizer: str
    parameters: list[nn.Parameter]


def choose(training: TrainingState, step: int) -> None:
    """Let the parameters of a step need gradients, and no others of the optimizers'.

    Raises:
        InputError: the method names none, or not by patterns.
    """
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
    where = f"{type(training.method).__name__}.trainable"
    if patterns is None:
        return None
    names, found = tuple(training.to_train), tuple(map(str, patterns))
    by_pattern = _fitting(names, found)
    for pattern, fits in by_pattern.items():
        if not fits:
            raise InputError(
                f"method: expected patterns that parameters fit from {where}, got {pattern!r}, "
                f"which none does; the first ones are {', '.join(names[:4])}"
            )
    return frozenset().union(*by_pattern.values())


@lru_cache(maxsize=4)  # most steps train what the step before did
def _fitting(names: tuple[str, ...], patterns: tuple[str, ...]) -> dict[str, frozenset[str]]:
    """Return the names that fit each pattern."""
    return {pattern: frozenset(fitting(names, pattern)) for pattern in patterns}


def updates_of(training: TrainingState, step: int) -> list[Update]:
    """Return the updates of a step, in order, but for those whose parameters are all frozen."""
    names = list(training.optimizers)
    for parameters in training.parameters_of.values():
        for parameter in parameters:
            if not parameter.requires_grad:
                parameter.grad = None  # an optimizer would move by the last one for ever
    found = training.method.updates(step, names)
    updates = [
        Update(step, number, name, [p for p in training.parameters_of[name] if p.requires_grad])
        for number, name in enumerate(found)
    ]
    trained = [update for update in updates if update.parameters]
    if not trained:
        raise InputError(
            f"method: expected an update of parameters that {type(training.method).__name__}."
            f"trainable names in step {step}, got {', '.join(found)}, whose are all frozen; let "
            "the step train some of them, or update another optimizer"
        )
    return trained
