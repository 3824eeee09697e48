"""A small convolutional network for small images."""

from collections.abc import Sequence

from torch import Tensor, nn

from seedbed.errors import InputError


class CNN(nn.Module):
    """Two convolutions, each with ReLU and max-pooling, then a linear layer."""

    def __init__(
        self, input_shape: Sequence[int], outputs: int, channels: Sequence[int], dropout: float
    ) -> None:
        """Build the network for images of shape (C, H, W)."""
        super().__init__()
        if len(input_shape) != 3:
            raise InputError(
                "model.input_shape: expected (channels, height, width), got "
                f"{tuple(input_shape)}; choose model=lstm or model=rnn for sequences"
            )
        inputs, height, width = input_shape
        first, second = channels
        self.features = nn.Sequential(
            nn.Conv2d(inputs, first, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(first, second, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.head = nn.Sequential(
            nn.Flatten(), nn.Dropout(dropout), nn.Linear(second * (height // 4) * (width // 4), outputs)
        )

    def forward(self, images: Tensor) -> Tensor:
        """Map images, float32 (B, C, H, W), to logits, float32 (B, outputs)."""
        logits: Tensor = self.head(self.features(images))
        return logits
