"""Recurrent networks that predict from the last step of a sequence."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise

import torch
from torch import Tensor, nn

CELLS: dict[str, type[nn.RNN] | type[nn.LSTM]] = {"rnn": nn.RNN, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """Recurrent layers with dropout after each, then a linear layer on the last step.

    Each layer is a module with `nn.Dropout` after it, because the dropout inside
    cuDNN's recurrent layers keeps a random state that no seed sets and no checkpoint
    holds.

    Args:
        input_shape: (T, F), or (C, H, W): an image is a sequence of H rows of C * W
        values.
        outputs: number of classes, or of values to predict.
        cell: rnn (Elman's, with tanh) or lstm.
    """

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        cell: str,
        hidden_size: int,
        layers: int,
        dropout: float,
    ) -> None:
        super().__init__()
        *channels, steps, values = input_shape
        features = math.prod(channels) * values
        sizes = [features] + [hidden_size] * layers
        self.layers = nn.ModuleList(
            CELLS[cell](inputs, size, batch_first=True)
            for inputs, size in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, outputs)
        for layer in self.layers:
            if isinstance(layer, nn.LSTM):
                _remember(layer, steps)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map sequences, float32 (B, T, F) or (B, C, H, W), to float32 (B, outputs)."""
        # (B, T, F)
        x = inputs.transpose(1, 2).flatten(2) if inputs.dim() == 4 else inputs
        for layer in self.layers:
            # float32 under autocast: cuDNN's layers would use float16, which needs loss
            # scaling.
            with torch.autocast("cuda", enabled=False) if x.is_cuda else nullcontext():
                x = self.dropout(layer(x.float() if x.is_cuda else x)[0])
        outputs: Tensor = self.head(x[:, -1])
        return outputs.float()


def _remember(layer: nn.LSTM, steps: int) -> None:
    """Initialise the gates' biases for memories of 1 step up to the whole sequence.

    The chrono initialisation of Tallec & Ollivier (2018),
    https://arxiv.org/abs/1804.11188: a forget gate with bias log(t) keeps a value for
    about t steps.
    """
    size = layer.hidden_size  # PyTorch's gates are i, f, g, o
    lasting = torch.log(1 + torch.rand(size) * max(steps - 2, 0))
    with torch.no_grad():
        layer.get_parameter("bias_ih_l0")[: 2 * size] = torch.cat([-lasting, lasting])
        layer.get_parameter("bias_hh_l0")[: 2 * size] = 0
