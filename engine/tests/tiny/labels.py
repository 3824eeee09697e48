"""Data sets whose samples have no label, several, or numbers, and tasks with two
losses."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import Dataset

from seedbed.tasks import Classification
from tests.tiny import CLASSES, FEATURES

NONE = -100


def point(index: int) -> Tensor:
    return torch.sin(torch.arange(1.0, FEATURES + 1) * (index + 1))


class Partly(Dataset[tuple[Tensor, int]]):
    """Points of which every third has a label; of eight in a row, as in a batch, none
    or some."""

    def __init__(self, samples: int, start: int = 0) -> None:
        self.samples = samples
        self.start = start

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return a point, float32 (FEATURES,), and its class or NONE."""
        number = self.start + index
        is_labelled = number % 16 < 8 and number % 3 == 0
        return point(number), number % 7 % CLASSES if is_labelled else NONE


class Hot(Partly):
    """The same points with 0 or 1 for each of CLASSES labels, float32."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        found = point(self.start + index)
        return found, (found[:CLASSES] > 0.3).float()


class Half(Hot):
    """The same points with 0 or 1, float32 (1,)."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        found, targets = super().__getitem__(index)
        return found, targets[:1]


class Number(Partly):
    """The same points with a number, float32 ()."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        found = point(self.start + index)
        return found, found.sum()


class Doubled(Classification):
    """A loss that is not the mean of the losses, as where only one of them is
    overridden."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * F.cross_entropy(outputs, targets)
