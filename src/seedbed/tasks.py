"""What a model is trained to do: the loss, and the metric that people quote."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Classification:
    """Cross-entropy with label smoothing (Szegedy et al. 2016); the metric is accuracy."""

    label_smoothing: float = 0.0
    metric_name = "accuracy"
    higher_is_better = True

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of logits (B, C) against int64 classes (B,), as a scalar."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.label_smoothing)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        return F.cross_entropy(
            outputs, targets, label_smoothing=self.label_smoothing, reduction="none"
        )

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return for each sample whether it was right, as float32 (B,)."""
        return (self.predictions(outputs) == targets).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the likeliest classes, int64 (B,)."""
        return outputs.argmax(dim=1)


@dataclass(frozen=True)
class Regression:
    """Mean squared error, as the loss and as the metric."""

    metric_name = "mse"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of (B, ...) against (B, ...), as a scalar."""
        return F.mse_loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,)."""
        return self.metric(outputs, targets)

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's mean squared error, float32 (B,)."""
        return ((outputs - targets) ** 2).flatten(1).mean(dim=1)

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return each sample's first output, float32 (B,)."""
        return outputs.flatten(1)[:, 0]


Task = Classification | Regression


def make(name: str, label_smoothing: float = 0.0) -> Task:
    """Return the task of that name: classification or regression."""
    return Classification(label_smoothing) if name == "classification" else Regression()


def mean(values: list[Tensor]) -> float:
    """Return the mean over many batches' samples: exact before its one rounding, in any order."""
    samples = torch.cat(values).tolist()
    return math.fsum(samples) / len(samples)
