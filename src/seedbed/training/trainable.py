"""Which parameters a step trains: those that the method names, of those that were to be trained."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

from seedbed.errors import InputError
from seedbed.training.state import TrainingState


def choose(training: TrainingState, step: int) -> None:
    """Let the parameters of a step need gradients, and no others of the optimizers'.

    Raises:
        InputError: the method names none, or not by patterns.
    """
    if not training.overrides("trainable"):
        return
    patterns = checked(training, training.method.trainable(step))
    for name, parameter in training.to_train.items():
        needed = patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)
        if parameter.requires_grad != needed:
            parameter.requires_grad_(needed)
            parameter.grad = None  # an optimizer passes over parameters without


def checked(training: TrainingState, patterns: Iterable[str] | None) -> list[str] | None:
    """Return patterns as a list, each of which some parameter fits."""
    where = f"{type(training.method).__name__}.trainable"
    if patterns is None:
        return None
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise InputError(
            f"method: expected a list of patterns from {where}, got {patterns!r}; return, for "
            "instance, ['head.*'], or None for all parameters"
        )
    found = list(patterns)
    for pattern in found:
        if not any(fnmatchcase(name, str(pattern)) for name in training.to_train):
            known = ", ".join(list(training.to_train)[:4])
            raise InputError(
                f"method: expected patterns that parameters fit from {where}, got {pattern!r}, "
                f"which none does; the first ones are {known}"
            )
    if not found:
        raise InputError(f"method: expected a pattern at least from {where}, got []; name one")
    return found
