"""Models with the habits of published code, each of which could cost a run its bits."""

import copy
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.zoo.parts import CLASSES


def convolutions() -> nn.Sequential:
    """Return two convolutions with batch norm and dropout, from 3 x 32 x 32 to 8 x 8 x 8."""
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, stride=2, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
    )


class Base(nn.Module):
    """Convolutions, the mean over the image, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = convolutions()
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        return self.head(self.features(x).mean((2, 3)))


class FrozenBatchNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.features[1].eval()  # the usual way to keep running statistics


class FrozenBackbone(Base):
    def __init__(self) -> None:
        super().__init__()
        self.features.eval().requires_grad_(False)


class BufferMadeInForward(Base):
    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        if not hasattr(self, "window"):
            window = torch.hann_window(features.shape[-1], periodic=False) + 0.1
            self.register_buffer("window", window, persistent=False)
        return self.head((features * self.window).mean((2, 3)))


class BufferThatGrows(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("positions", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        if len(self.positions) < features.shape[-1]:
            self.positions = torch.arange(features.shape[-1]).cos()
        return self.head((features + self.positions).mean((2, 3)))


class CountsItsCalls(Base):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return super().forward(x) * (1 + 0.1 * self.calls)  # annealed


class ViewsItsInput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3 * 32 * 32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.view(x.size(0), -1))


class ViewsItsFeatures(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8 * 8 * 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x)
        return self.head(features.view(features.size(0), -1))


class PackedLSTM(nn.Module):
    """An image as 96 steps of 32 values, of lengths that differ within the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 8, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        steps = x.flatten(1, 2)[:, :12]
        lengths = torch.arange(len(x)) % 4 + 6
        packed = nn.utils.rnn.pack_padded_sequence(
            steps, lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


class LazyWithoutADryRun(Base):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(CLASSES)


class Parametrized(Base):
    def __init__(self, by: str) -> None:
        super().__init__()
        self.features[4] = getattr(parametrizations, by)(self.features[4])


class TiedWeights(Base):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.down.weight = self.up.weight

    def forward(self, x: Tensor) -> Tensor:
        features = self.features(x).mean((2, 3))
        return self.head(self.down(self.up(features).relu()))


class GradientCheckpointing(Base):
    def forward(self, x: Tensor) -> Tensor:
        features: Any = checkpoint(self.features, x, use_reentrant=False)
        return self.head(features.mean((2, 3)))


class MomentumTeacher(Base):
    """A copy that follows the model and is kept in its state_dict, as in self-supervision."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = copy.deepcopy(self.features).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                pairs = zip(self.teacher.parameters(), self.features.parameters(), strict=True)
                for old, new in pairs:
                    old.lerp_(new, 0.1)
        return super().forward(x) + self.head(self.teacher(x).mean((2, 3)))


class DrawsWithThreeLibraries(Base):
    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            x = x * random.uniform(0.9, 1.1) + 0.1 * float(np.random.randn())
            x = x + 0.1 * torch.randn_like(x)
        return super().forward(x)


class RefusedInADryRun(nn.Module):
    """The constructor runs the model to see how large its features are; PyTorch refuses that."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.unpool = nn.MaxPool2d(2, return_indices=True), nn.MaxUnpool2d(2)
        self.head = nn.Linear(self.features(torch.ones(1, 3, 32, 32)).shape[1], CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return self.unpool(*self.pool(x)).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class SeveralOutputs(Base):
    """Logits of two heads."""

    def __init__(self, container: str) -> None:
        super().__init__()
        self.container = container
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Any:
        features = self.features(x).mean((2, 3))
        logits, others = self.head(features), self.second(features)
        if self.container == "tuple":
            return logits, others
        return {"logits": logits, "others": others}


def all_logits(outputs: Any) -> list[Tensor]:
    """Return the logits of every head, the main one first."""
    if isinstance(outputs, Tensor):
        return [outputs]
    values = outputs.values() if isinstance(outputs, Mapping) else outputs
    return [value for value in values if isinstance(value, Tensor) and value.dim() == 2]


class OfAllOutputs:
    """Cross-entropy of every head; the metric is the accuracy of the main one."""

    metric_name = "accuracy"
    higher_is_better = True

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).mean()

    def losses(self, outputs: Any, targets: Tensor) -> Tensor:
        heads = all_logits(outputs)
        return torch.stack([F.cross_entropy(h, targets, reduction="none") for h in heads]).mean(0)

    def metric(self, outputs: Any, targets: Tensor) -> Tensor:
        return (self.predictions(outputs) == targets).float()

    def predictions(self, outputs: Any) -> Tensor:
        return all_logits(outputs)[0].argmax(dim=1)


class RenormalizedEmbedding(nn.Module):
    """An embedding with `max_norm`, which changes its weights when it looks them up, always."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 6, max_norm=1.0)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = (images.flatten(1) * 4).long().clamp(0, 15)
        return self.head(self.embedding(tokens).mean(1))
