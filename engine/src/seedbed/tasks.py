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
        smoothing = self.label_smoothing
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing, reduction=reduction)


@dataclass(frozen=True)
class Regression:
    """Mean squared error, as the loss and as the metric."""

    metric_name = "mse"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of (B, ...) against (B, ...), as a scalar."""
        _check_same_shape(outputs, targets)
        return F.mse_loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        return self.metric(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's mean squared error, float32 (B,)."""
        _check_same_shape(outputs, targets)
        return ((outputs - targets) ** 2).reshape(len(outputs), -1).mean(dim=1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return each sample's first output, float32 (B,)."""
        return outputs.reshape(len(outputs), -1)[:, 0]


_BUILT_IN = {
    "classification": "seedbed.tasks.Classification",
    "regression": "seedbed.tasks.Regression",
}


def make(spec: Mapping[str, Any]) -> Task:
    """Return the task that `data.task` describes: ours by its name, or one of the user's."""
    if "_target_" not in spec:
        spec = {**spec, "_target_": _BUILT_IN[spec["name"]]}
    return build.build(spec, "data.task")  # type: ignore[no-any-return]


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
