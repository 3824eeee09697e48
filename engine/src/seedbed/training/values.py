"""What a method returns: checked, each kind in one line that names the function."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seedbed.errors import InputError
from seedbed.methods import Method, Value
from seedbed.training.state import TrainingState

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@/-]*")
_TAKEN = ("step", "epoch", "phase", "learning_rate")  # columns of metrics.csv
_KEPT_APART = ("predictions", "outputs", "targets")


def of_training_step(method: Method, found: Any) -> tuple[Tensor, dict[str, Value], Tensor | None]:
    """Return the loss, the other values by name, and the weight, if there is one.

    Raises:
        InputError: they are of another kind.
    """
    where = f"{type(method).__name__}.training_step"
    values = dict(found) if isinstance(found, Mapping) else {"loss": found}
    loss, weight = values.pop("loss", None), values.pop("weight", None)
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        raise InputError(
            f"method: expected a scalar loss with a gradient from {where}, got {_of_loss(loss)}; "
            "return the mean over the samples, or a mapping with it under 'loss'"
        )
    for name, value in values.items():
        _require_name(name, where)
        if not (callable(value) or _is_scalar(value)):
            raise InputError(
                f"method: expected a scalar, or a function that returns one, in {name!r} of "
                f"{where}, got {described(value)}; return its mean"
            )
    if weight is not None and not _is_scalar(weight):
        raise InputError(
            f"method: expected a number in 'weight' of {where}, got {described(weight)}; return "
            "what the shard counts in the mean, such as its number of tokens"
        )
    if weight is not None:
        # A copy: shards are summed in place, and a method may return a buffer of the model.
        weight = torch.as_tensor(weight, dtype=torch.float32, device=loss.device).detach().clone()
    return loss, values, weight


def scalar(training: TrainingState, name: str, value: Value) -> Tensor:
    """Return a copy of a named value of a step, floating-point; to be called without gradients.

    A method may return a parameter or a buffer itself. Shards are summed in place, and values are
    read steps later.

    Raises:
        InputError: a function returned something else.
    """
    if callable(value) and not isinstance(value, Tensor):
        value = value()
        if not _is_scalar(value):
            raise InputError(
                f"method: expected a function that returns a scalar in {name!r} of "
                f"{type(training.method).__name__}.training_step, got {described(value)}; return "
                "its mean"
            )
    tensor = torch.as_tensor(value, device=training.device).detach()
    return tensor.clone() if tensor.is_floating_point() else tensor.float()


def require_same_names(method: Method, names: list[str], found: Iterable[str]) -> None:
    """Note the names of the first shard's values; raise InputError for another shard's."""
    names[:] = names or found
    if names != list(found):
        raise InputError(
            f"method: expected the same names from {type(method).__name__}.training_step for all "
            f"shards of a batch, got {', '.join(found)} after {', '.join(names)}; return all of "
            "them for each"
        )


def of_validation_step(
    method: Method, found: Any, samples: int
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    """Return what is kept by name, and the names that are taken: predictions, outputs, targets.

    Args:
        samples: of the batch.

    Raises:
        InputError: they are of another kind.
    """
    where = f"{type(method).__name__}.validation_step"
    if not isinstance(found, Mapping) or not found:
        raise InputError(
            f"method: expected a mapping with tensors by name, such as 'loss', from {where}, got "
            f"{described(found)}; see docs/methods.md"
        )
    kept = {name: value for name, value in found.items() if name not in _KEPT_APART}
    for name, value in kept.items():
        _require_name(name, where)
        pair = isinstance(value, tuple) and len(value) == 2 and all(map(_is_scalar, value))
        if not pair and not (isinstance(value, Tensor) and value.dim()):
            raise InputError(
                f"method: expected a tensor with a value of each sample, or (sum, count), in "
                f"{name!r} of {where}, got {described(value)}; the mean over all is taken later"
            )
    predictions = found.get("predictions")
    if predictions is not None and not (
        isinstance(predictions, Tensor) and predictions.shape == (samples,)
    ):
        raise InputError(
            f"method: expected a number for each of {samples} samples in 'predictions' of {where}, "
            f"got {described(predictions)}; return a tensor ({samples},), or leave it out"
        )
    return kept, found


def of_compute(method: Method, found: Any) -> dict[str, float]:
    """Return the values of an evaluation."""
    for name in found:
        _require_name(name, f"{type(method).__name__}.compute")
    return {name: float(value) for name, value in found.items()}


def monitored(method: Method, values: Mapping[str, float], name: str) -> float:
    """Return the value that best.pt and early stopping follow.

    Raises:
        InputError: an evaluation has none of that name.
    """
    if name in values:
        return values[name]
    known = ", ".join(f"validation_{each}" for each in values)
    raise InputError(
        f"trainer.monitor: expected a value of {type(method).__name__}.validation_step, got "
        f"validation_{name}, which is none of them; "
        + (f"choose one of {known}" if values else "return one, by a name")
    )


def described(value: Any) -> str:
    """Return in a few words what a value is."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _of_loss(loss: Any) -> str:
    """Return in a few words what stands for a loss."""
    if isinstance(loss, Tensor) and not loss.dim():
        return "one that depends on no weight"
    return described(loss)


def _is_scalar(value: Any) -> bool:
    """Return whether something is a number: Python's, NumPy's or a tensor without dimensions."""
    if isinstance(value, Tensor):
        return value.dim() == 0
    return isinstance(value, int | float | np.number)


def _require_name(name: Any, where: str) -> None:
    if isinstance(name, str) and _NAME.fullmatch(name) and name not in _TAKEN:
        return
    raise InputError(
        f"method: expected names of letters, digits and _ from {where}, other than "
        f"{', '.join(_TAKEN)}, got {name!r}; rename it"
    )
