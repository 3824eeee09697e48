"""A small convolutional network for small images."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class CNN(nn.Module):
    """Convolutions that each halve the image, then dropout and a linear layer.

    The first one has stride 2, which is cheaper than stride 1 and pooling; the others
    are followed by max-pooling. There is no batch normalisation: its running averages
    would depend on how a batch is split between processes.

    The arguments are explained in configs/model/cnn.yaml.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        channels: Sequence[int],
        dropout: float,
    ) -> None:
        super().__init__()
        inputs, height, width = input_shape
        layers: list[nn.Module] = [
            nn.Conv2d(inputs, channels[0], 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
        ]
        for before, after in pairwise(channels):
            # Pooling before the ReLU has the same result, and leaves it a quarter of
            # the values.
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.MaxPool2d(2),
                nn.ReLU(inplace=True),
            ]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        # The strided convolution halves each side rounding up, pooling rounding down.
        height, width = (
            (side + 1) // 2 >> (len(channels) - 1) for side in (height, width)
        )
        self.head = nn.Linear(channels[-1] * height * width, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, float32 (B, C, H, W), to float32 (B, outputs): logits or
        predictions."""
        features = self.features(images).flatten(1)
        outputs: Tensor = self.head(self.dropout(features))
        return outputs.float()
