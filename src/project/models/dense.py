"""A minimal model to start from: two linear layers."""

from torch import nn


class Dense(nn.Sequential):
    """Maps inputs, float32 (B, inputs), to float32 (B, outputs): logits or
    predictions."""

    def __init__(self, inputs: int, outputs: int, width: int) -> None:
        super().__init__(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs))
