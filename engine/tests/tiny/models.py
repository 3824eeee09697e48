"""Two models: one that draws in training, one with buffers."""

from torch import Tensor, nn


class Dense(nn.Sequential):
    """Two linear layers with dropout between them."""

    def __init__(self, features: int, outputs: int, width: int, dropout: float) -> None:
        layers = nn.Linear(features, width), nn.ReLU(), nn.Dropout(dropout)
        super().__init__(*layers, nn.Linear(width, outputs))


class Convolution(nn.Module):
    """A convolution with batch normalisation, and a linear layer on its means."""

    def __init__(self, outputs: int, channels: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(1, channels, 3, padding=1)
        self.norm = nn.BatchNorm1d(channels)
        self.head = nn.LazyLinear(outputs)

    def forward(self, points: Tensor) -> Tensor:
        """Map points, float32 (B, FEATURES), to logits, float32 (B, outputs)."""
        features = self.norm(self.convolution(points[:, None])).relu()
        logits: Tensor = self.head(features.flatten(1))
        return logits
