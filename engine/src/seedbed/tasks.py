"""What a model is trained to do: the loss, and the metric that people quote."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from seedbed.config import build
from seedbed.errors import InputError


class Task(Protocol):
    """What training asks of a task; `data.task._target_` names one of your own.

    Outputs are what the model returns: one tensor as float32, anything else (a tuple, a mapping,
    an object) as it is. Targets are what the data set gives.
    """

    @property
    def metric_name(self) -> str:
        """Name the metric, for tables and summary.json."""

    @property
    def higher_is_better(self) -> bool:
        """Return whether a larger metric is better, for best.pt and early stopping."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return what is minimised, a scalar."""

    def losses(self, outputs: Any, targets: Any) -> Tensor:
        """Return each sample's loss, (B,), for evaluation: the mean is over all samples."""

    def metric(self, outputs: Any, targets: Any) -> Tensor:
        """Return each sample's metric, float32 (B,)."""

    def predictions(self, outputs: Any) -> Tensor:
        """Return one number for each sample, (B,), for test_predictions.csv."""


@dataclass(frozen=True)
class Classification:
    """Cross-entropy with label smoothing (Szegedy et al. 2016); the metric is accuracy."""

    label_smoothing: float = 0.0
    metric_name = "accuracy"
    higher_is_better = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits (B, C), as a scalar.

        Args:
            targets: int64 classes (B,), or their probabilities (B, C).
        """
        return self._cross_entropy(outputs, targets, "mean")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        return self._cross_entropy(outputs, targets, "none")

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for each sample whether it was right, as float32 (B,).

        Of targets that are probabilities, (B, C), as MixUp gives them, the largest is the class.
        """
        if targets.is_floating_point():
            targets = self.predictions(targets)
        return (self.predictions(outputs) == targets).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest classes, int64 (B,)."""
        return outputs.argmax(dim=1)

    def _cross_entropy(self, outputs: Tensor, targets: Tensor, reduction: str) -> Tensor:
        _check_tensor(self, outputs)
        if targets.dtype not in (torch.int64, torch.uint8) and targets.shape != outputs.shape:
            raise InputError(
                f"data: expected classes as int64 ({len(outputs)},), or their probabilities "
                f"{tuple(outputs.shape)}, got {str(targets.dtype).removeprefix('torch.')} "
                f"{tuple(targets.shape)}; return a class by int(...)"
            )
        try:
            return F.cross_entropy(
                outputs, targets, label_smoothing=self.label_smoothing, reduction=reduction
            )
        except IndexError as error:  # on a CPU; a GPU stops with an assertion of its own
            raise InputError(
                f"data.outputs: expected more than {outputs.shape[1]}, or classes below it, got "
                f"others ({error}); set it to the number of classes"
            ) from None


@dataclass(frozen=True)
class Regression:
    """Mean squared error, as the loss and as the metric."""

    metric_name = "mse"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of (B, ...) against (B, ...), as a scalar."""
        _check_tensor(self, outputs)
        _check_same_shape(outputs, targets)
        return F.mse_loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        return self.metric(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's mean squared error, float32 (B,)."""
        _check_tensor(self, outputs)
        _check_same_shape(outputs, targets)
        return ((outputs - targets) ** 2).reshape(len(outputs), -1).mean(dim=1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return each sample's first output, float32 (B,)."""
        return outputs.reshape(len(outputs), -1)[:, 0]


_BUILT_IN = {
    "classification": "seedbed.tasks.Classification",
    "regression": "seedbed.tasks.Regression",
}
_MEMBERS = ("metric_name", "higher_is_better", "loss", "losses", "metric", "predictions")


def make(spec: Mapping[str, Any]) -> Task:
    """Return the task that `data.task` describes: ours by its name, or one of the user's."""
    if "_target_" not in spec:
        spec = {**spec, "_target_": _BUILT_IN[spec["name"]]}
    task: Task = build.build(spec, "data.task")
    missing = [name for name in _MEMBERS if not hasattr(task, name)]
    if missing:
        raise InputError(
            f"data.task: expected a task with {', '.join(_MEMBERS)}, got {type(task).__name__} "
            f"without {', '.join(missing)}; see docs/extending.md"
        )
    return task


def _check_tensor(task: object, outputs: object) -> None:
    """Refuse a tuple or mapping of outputs: which of them is meant is the user's to say."""
    if not isinstance(outputs, Tensor):
        raise InputError(
            f"model: expected one tensor for {type(task).__name__}, got a "
            f"{type(outputs).__name__}; return the part that it takes, or name a task of your own "
            "by data.task._target_"
        )


def _check_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Refuse what would be broadcast to another meaning, such as (B, 1) against (B,)."""
    if outputs.shape != targets.shape:
        raise InputError(
            f"data.task: expected targets of the outputs' shape {tuple(outputs.shape)}, got "
            f"{tuple(targets.shape)}; give them the same shape"
        )


def mean(values: list[Tensor]) -> float:
    """Return the mean over many batches' samples: exact before its one rounding, in any order."""
    samples = torch.cat(values).tolist()
    return math.fsum(samples) / len(samples)


def check_loss(task: Task, loss: object) -> None:
    """Raise InputError for a loss that has no gradient."""
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        got = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        if isinstance(loss, Tensor) and not loss.dim():
            got = "one that depends on no weight"
        raise InputError(
            f"data.task: expected a scalar with a gradient from {type(task).__name__}.loss, got "
            f"{got}; return the mean over the samples, computed from the outputs"
        )


def for_each_sample(task: Task, outputs: Any, targets: Any) -> list[Tensor]:
    """Return the losses, the metric and the predictions of a batch, each (B,).

    Raises:
        InputError: the task returns something else.
    """
    return [
        _of_samples(task, "losses", task.losses(outputs, targets)),
        metric(task, outputs, targets),
        _of_samples(task, "predictions", task.predictions(outputs)),
    ]


def metric(task: Task, outputs: Any, targets: Any) -> Tensor:
    """Return the metric of a batch, floating-point (B,); raise InputError for something else."""
    return _of_samples(task, "metric", task.metric(outputs, targets))


def _of_samples(task: Task, name: str, found: Any) -> Tensor:
    """Return what a function of a task returned, if that is a number for each sample."""
    is_tensor, kind = isinstance(found, Tensor), "numbers" if name == "predictions" else "float32"
    is_flat = is_tensor and found.dim() == 1
    if is_flat and (kind == "numbers" or found.is_floating_point()):
        return found  # type: ignore[no-any-return]
    dtype = str(found.dtype).removeprefix("torch.") if is_tensor else ""
    got = f"{dtype} {tuple(found.shape)}" if is_tensor else f"a {type(found).__name__}"
    advice = "it as .float()" if is_flat else "one for each sample: the mean is taken later"
    raise InputError(
        f"data.task: expected {kind} (B,) from {type(task).__name__}.{name}, got {got}; "
        f"return {advice}"
    )
