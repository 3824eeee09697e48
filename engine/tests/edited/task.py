"""Classification with smoothed labels."""

import torch.nn.functional as F
from torch import Tensor

from seedbed.tasks import Classification


class Smoothed(Classification):
    """The cross-entropy with smoothed labels, and a penalty for large logits."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        penalty = 0.001 * outputs.square().mean()
        return F.cross_entropy(outputs, targets, label_smoothing=0.1) + penalty


def unused(loss: float) -> float:
    return loss + 1
