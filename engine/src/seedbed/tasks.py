"""What `data.task` names: the loss, and the metric that people quote.

A task of your own (`data.task._target_`) has the same members. Outputs are what the model returns:
one tensor as float32, anything else (a tuple, a mapping, an object) as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from seedbed.config import build
from seedbed.errors import InputError


@dataclass(frozen=True)
class Classification:
    """Cross-entropy with label smoothing (Szegedy et al. 2016); the metric is accuracy."""

    label_smoothing: float = 0.0
    metric_name = "accuracy"
    higher_is_better = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits (B, C) and int64 classes (B,) or probabilities (B, C)."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        smoothing = self.label_smoothing
        return F.cross_entropy(outputs, targets, label_smoothing=smoothing, reduction="none")

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


@dataclass(frozen=True)
class Regression:
    """Mean squared error of (B, ...) against (B, ...), as the loss and as the metric."""

    metric_name = "mse"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error, a scalar."""
        _require_same_shape(outputs, targets)
        return F.mse_loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's mean squared error, float32 (B,)."""
        _require_same_shape(outputs, targets)
        return ((outputs - targets) ** 2).reshape(len(outputs), -1).mean(dim=1)

    metric = losses

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return each sample's first output, float32 (B,)."""
        return outputs.reshape(len(outputs), -1)[:, 0]


def make(spec: Mapping[str, Any]) -> Any:
    """Return the task that `data.task` describes: ours by its name, or one of the user's."""
    if "_target_" not in spec:
        spec = {**spec, "_target_": f"seedbed.tasks.{spec['name'].capitalize()}"}
    return build.build(spec, "data.task")


def _require_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Refuse what would be broadcast to another meaning, such as (B, 1) against (B,)."""
    if outputs.shape != targets.shape:
        raise InputError(
            f"data.task: expected targets of the outputs' shape {tuple(outputs.shape)}, got "
            f"{tuple(targets.shape)}"
        )
