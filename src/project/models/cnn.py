"""A small convolutional network for small images."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn

from project.models.arguments import check_common, is_shape
from seedbed.errors import InputError


class CNN(nn.Module):
    """Convolutions that each halve the image, then dropout and a linear layer.

    The first one halves by its stride, which costs less than pooling what a whole one computes;
    the others are pooled. There is no batch normalisation: its running averages would depend on
    how a batch is shared between processes.
    """

    def __init__(
        self, input_shape: Sequence[int], outputs: int, channels: Sequence[int], dropout: float
    ) -> None:
        """Build the network.

        Args:
            input_shape: (C, H, W).
            outputs: classes, or numbers to predict.
            channels: of each convolution: one of 5x5, then 3x3.
            dropout: probability that a feature is dropped before the linear layer.
        """
        super().__init__()
        check_common(input_shape, outputs, dropout)
        inputs, height, width = _checked(input_shape, channels)
        layers: list[nn.Module] = [
            nn.Conv2d(inputs, channels[0], 5, stride=2, padding=2),
            nn.ReLU(inplace=True),
        ]
        for before, after in pairwise(channels):
            # Pooled first: the same values, and a quarter of them to go through the ReLU.
            layers += [
                nn.Conv2d(before, after, 3, padding=1),
                nn.MaxPool2d(2),
                nn.ReLU(inplace=True),
            ]
        self.features = nn.Sequential(*layers)
        self.dropout = nn.Dropout(dropout)
        pixels = _halved(height, len(channels)) * _halved(width, len(channels))
        self.head = nn.Linear(channels[-1] * pixels, outputs)

    def forward(self, images: Tensor) -> Tensor:
        """Map images, float32 (B, C, H, W), to float32 (B, outputs): logits or predictions."""
        features = self.features(images).flatten(1)
        outputs: Tensor = self.head(self.dropout(features))
        return outputs.float()


def _halved(size: int, times: int) -> int:
    """Return what is left of a side: the strided convolution rounds up, pooling rounds down."""
    return (size + 1) // 2 >> (times - 1)


def _checked(input_shape: Sequence[int], channels: Sequence[int]) -> tuple[int, int, int]:
    if not is_shape(channels) or not channels:
        raise InputError(
            f"model.channels: expected a list of integers >= 1, got {channels}; "
            "try model.channels=[32,64,128]"
        )
    smallest = 2 ** len(channels)
    if len(input_shape) != 3 or min(input_shape[1:]) < smallest:
        raise InputError(
            f"model.input_shape: expected (channels, height, width) of at least {smallest} pixels, "
            f"got {tuple(input_shape)}; try model=lstm for sequences, or fewer model.channels"
        )
    count, height, width = input_shape
    return count, height, width
