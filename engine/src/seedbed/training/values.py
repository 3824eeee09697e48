"""Values by name that a method returns, of a step or an evaluation."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from seedbed.errors import InputError
from seedbed.methods import Method, Value
from seedbed.training.state import TrainingState

_TAKEN = ("step", "epoch", "phase", "learning_rate")  # columns of metrics.csv


def scalar(training: TrainingState, name: str, value: Value) -> Tensor:
    """Return a copy of a value of a step, floating-point; to be called without gradients.

    A method may return a parameter or a buffer itself. Shards are summed in place, and values are
    read steps later.
    """
    require_free(training.method, [name])
    if callable(value) and not isinstance(value, Tensor):
        value = value()
    tensor = torch.as_tensor(value, device=training.device).detach().reshape(())
    return tensor.clone() if tensor.is_floating_point() else tensor.float()


def require_free(method: Method, names: Iterable[str]) -> None:
    """Refuse a name that would take another column's place in metrics.csv."""
    for name in names:
        if name in _TAKEN:
            raise InputError(
                f"method: expected names other than {', '.join(_TAKEN)} from "
                f"{type(method).__name__}, got {name!r}"
            )


def require_same_names(method: Method, names: Iterable[str], others: Iterable[str]) -> None:
    """Refuse values that only some shards or batches have: others would be taken for them."""
    if list(names) != list(others):
        raise InputError(
            f"method: expected the same names from {type(method).__name__} for all shards and "
            f"batches, got {', '.join(others)} after {', '.join(names)}"
        )


def monitored(method: Method, values: Mapping[str, float], name: str) -> float:
    """Return the value that best.pt and early stopping follow."""
    if name in values:
        return values[name]
    known = ", ".join(f"validation_{each}" for each in values)
    raise InputError(
        f"trainer.monitor: expected a value of {type(method).__name__}.validation_step, got "
        f"validation_{name}; it returns {known or 'none'}"
    )
