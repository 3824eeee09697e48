"""The tasks of `data.task`: the loss, and the metric to report.

A user-defined task (`data.task._target_`) has the same members. Outputs are those of the model: a
single tensor is converted to float32, anything else (a tuple, a mapping, an object) is unchanged.
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
        """Return whether each sample's prediction is correct, as float32 (B,).

        If targets are probabilities, (B, C), as with MixUp, the most likely class is the target.
        """
        if targets.is_floating_point():
            targets = self.predictions(targets)
        return (self.predictions(outputs) == targets).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely classes, int64 (B,)."""
        return outputs.argmax(dim=1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, float32 (B, C)."""
        return outputs.softmax(dim=1)


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
        """Return each sample's outputs, float32 (B, ...)."""
        return outputs


def make(spec: Mapping[str, Any]) -> Any:
    """Build the task of `data.task`: a built-in one by its name, or a user-defined one."""
    if "_target_" not in spec:
        spec = {**spec, "_target_": f"seedbed.tasks.{spec['name'].capitalize()}"}
    return build.build(spec, "data.task")


def _require_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError for shapes that would broadcast silently, such as (B, 1) against (B,)."""
    if outputs.shape != targets.shape:
        raise InputError(
            f"data.task: expected targets of the outputs' shape {tuple(outputs.shape)}, got "
            f"{tuple(targets.shape)}"
        )
