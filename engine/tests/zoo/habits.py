"""Models with habits of published code that other tests do not try (tests/training/cases.py)."""

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.zoo.parts import CLASSES


class Base(nn.Module):
    """Two convolutions with batch norm and dropout, the mean over the image, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, stride=2, padding=1),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Conv2d(6, 8, 3, stride=2, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
        )
        self.head = nn.LazyLinear(CLASSES)  # without a dry run

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class FrozenBatchNorm(Base):
    def __init__(self) -> None:
        super().__init__()
        self.features[1].eval()  # the usual way to keep running statistics


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


class ViewsItsFeatures(Base):
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
        lengths = torch.arange(len(x)) % 4 + 6
        packed = nn.utils.rnn.pack_padded_sequence(
            x.flatten(1, 2)[:, :12], lengths, batch_first=True, enforce_sorted=False
        )
        return self.head(self.lstm(packed)[1][0][-1])


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
        features: Tensor = checkpoint(self.features, x, use_reentrant=False)
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


class RenormalizedEmbedding(nn.Module):
    """An embedding with `max_norm`, which changes its weights when it looks them up, always."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 6, max_norm=1.0)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = (images.flatten(1) * 4).long().clamp(0, 15)
        return self.head(self.embedding(tokens).mean(1))
