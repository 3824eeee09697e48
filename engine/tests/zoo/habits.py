"""Models with habits of published code that other tests do not try (tests/training/cases.py)."""

import torch
from torch import Tensor, nn
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


class GradientCheckpointing(Base):
    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = checkpoint(self.features, x, use_reentrant=False)
        return self.head(features.mean((2, 3)))


class CachedPositions(Base):
    """Fills a cache in its first forward pass, which may be one of an evaluation, as timm does."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, CLASSES)
        self.register_buffer("positions", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.positions.shape != x.shape[2:]:
            self.positions = torch.ones(x.shape[2:], device=x.device).cumsum(1)
        return super().forward(x + 0.01 * self.positions)


class RenormalizedEmbedding(nn.Module):
    """An embedding with `max_norm`, which changes its weights when it looks them up, always."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 6, max_norm=1.0)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        tokens = (images.flatten(1) * 4).long().clamp(0, 15)
        return self.head(self.embedding(tokens).mean(1))
