"""The default model."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class CNN(nn.Module):
    """Strided convolutions, dropout and a linear layer."""

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        channels: Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in pairwise([input_shape[0], *channels]):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        sides = [-(-side // 2 ** len(channels)) for side in input_shape[1:]]
        self.head = nn.Linear(channels[-1] * sides[0] * sides[1], outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, float32 (B, C, H, W), to logits, float32 (B, outputs)."""
        features = self.features(images).flatten(1)
        outputs: Tensor = self.head(self.dropout(features))
        return outputs.float()
