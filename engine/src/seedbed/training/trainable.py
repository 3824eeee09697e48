"""Which parameters a step trains: those that the method names, of those that were to be trained."""

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


def choose_trained(training: TrainingState, step: int) -> None:
    """Let the parameters of a step need gradients, and no others of the optimizers'."""
    if not training.overrides("trainable"):
        return
    trained = trained_by(training, step)
    for name, parameter in training.to_train.items():
        needed = trained is None or name in trained
        if parameter.requires_grad != needed:
            parameter.requires_grad_(needed)
            parameter.grad = None  # an optimizer passes over parameters without


def trained_by(training: TrainingState, step: int) -> frozenset[str] | None:
    """Return the names of the parameters that the method trains in a step; None for all."""
    patterns = training.method.trainable(step)
    return None if patterns is None else _fitting(tuple(training.to_train), tuple(patterns))


@lru_cache(maxsize=4)  # most steps train what the step before did
def _fitting(names: tuple[str, ...], patterns: tuple[str, ...]) -> frozenset[str]:
    for pattern in patterns:
        if not filter(names, pattern):
            raise InputError(
                "method: expected patterns that parameters fit from trainable, got "
                f"{pattern!r}, which none of {', '.join(names[:4])}, ... does"
            )
    return frozenset(name for pattern in patterns for name in filter(names, pattern))


def updates_of(training: TrainingState, step: int) -> list[Update]:
    """Return the updates of a step, in order, but for those whose parameters are all frozen."""
    for parameters in training.parameters_of.values():
        for parameter in parameters:
            if not parameter.requires_grad:
                parameter.grad = None  # an optimizer would move by the last one for ever
    updates = [
        Update(step, number, name, [p for p in training.parameters_of[name] if p.requires_grad])
        for number, name in enumerate(training.method.updates(step, list(training.optimizers)))
    ]
    updates = [update for update in updates if update.parameters]
    if not updates:
        raise InputError(f"method: expected parameters of the model in step {step}, got none")
    return updates
