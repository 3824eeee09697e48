"""Two models, one of linear layers and one with buffers; both draw in training."""

import torch
from torch import Tensor, nn

from tests.tiny import FEATURES


class Dense(nn.Sequential):
    """Two linear layers with dropout between them."""

    def __init__(self, features: int, outputs: int, width: int, dropout: float) -> None:
        layers = nn.Linear(features, width), nn.ReLU(), nn.Dropout(dropout)
        super().__init__(*layers, nn.Linear(width, outputs))


class ByName(nn.Module):
    """A linear layer for inputs that have names."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, outputs)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Map {"others": float32 (B, FEATURES - 1), "first": float32 (B,)} to logits,
        float32 (B, outputs)."""
        points = torch.cat([inputs["first"][:, None], inputs["others"]], dim=1)
        logits: Tensor = self.layer(points)
        return logits


class Convolution(nn.Module):
    """A convolution with batch normalisation and dropout, and a linear layer."""

    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, channels, 3, padding=1)
        self.norm = nn.BatchNorm1d(channels)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(channels * FEATURES, outputs)

    def forward(self, points: Tensor) -> Tensor:
        """Map points, float32 (B, FEATURES), to logits, float32 (B, outputs)."""
        features = self.norm(self.convolution(points[:, None])).relu()
        logits: Tensor = self.head(self.dropout(features.flatten(1)))
        return logits
