"""Recurrent networks that answer from the last step of a sequence."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from project.models.arguments import check_common, check_count
from seedbed import determinism
from seedbed.errors import InputError

CELLS: dict[str, type[nn.RNN] | type[nn.LSTM]] = {"rnn": nn.RNN, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """Recurrent layers with dropout after each, then a linear layer on the last step.

    Every layer is a module of its own with `nn.Dropout` behind it, because the dropout inside
    cuDNN's recurrent layers keeps a state that no key reaches and no checkpoint holds.
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
        """Build the network.

        Args:
            input_shape: (T, F), or (C, H, W): an image is a sequence of H rows of C * W values.
            outputs: numbers to predict, or classes.
            cell: rnn (Elman's, with tanh) or lstm.
            hidden_size: values that a layer remembers.
            layers: how many.
            dropout: probability that a value is dropped.
        """
        super().__init__()
        check_common(input_shape, outputs, dropout)
        check_count("hidden_size", hidden_size, "try model.hidden_size=128")
        check_count("layers", layers, "try model.layers=1")
        if cell not in CELLS:
            raise InputError(f"model.cell: expected {' or '.join(CELLS)}, got {cell}; try lstm")
        steps, features = _as_sequence(input_shape)
        sizes = [features] + [hidden_size] * layers
        self.layers = nn.ModuleList(
            CELLS[cell](inputs, size, batch_first=True) for inputs, size in pairwise(sizes)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, outputs)
        for layer in self.layers:
            if isinstance(layer, nn.LSTM):
                _remember(layer, steps)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map sequences, float32 (B, T, F) or (B, C, H, W), to float32 (B, outputs)."""
        x = inputs.transpose(1, 2).flatten(2) if inputs.dim() == 4 else inputs  # (B, T, F)
        for layer in self.layers:
            with determinism.unfilled(x.device):  # oneDNN's LSTM asks for tens of megabytes a step
                x = _answers(layer, x)
            x = self.dropout(x)
        outputs: Tensor = self.head(x[:, -1])
        return outputs.float()


def _answers(layer: nn.Module, x: Tensor) -> Tensor:
    """Return a recurrent layer's answer to each step, (B, T, H).

    Under autocast cuDNN's layers take float16, also where bfloat16 was asked for, and nothing here
    scales the loss for that: they keep float32.
    """
    if not x.is_cuda:
        answers: Tensor = layer(x)[0]
        return answers
    with torch.autocast("cuda", enabled=False):
        answers = layer(x.float())[0]
        return answers


def _as_sequence(input_shape: Sequence[int]) -> tuple[int, int]:
    if len(input_shape) == 2:
        return input_shape[0], input_shape[1]
    if len(input_shape) == 3:
        return input_shape[1], input_shape[0] * input_shape[2]
    raise InputError(
        "model.input_shape: expected (steps, values) or (channels, height, width), got "
        f"{tuple(input_shape)}; give the model a data set of kind sequence or image"
    )


def _remember(layer: nn.LSTM, steps: int) -> None:
    """Set the gates' biases so that memories last from 1 step to the whole sequence.

    The chrono initialisation of Tallec & Ollivier (2018), https://arxiv.org/abs/1804.11188: a
    forget gate with bias log(t) keeps a value for about t steps.
    """
    size = layer.hidden_size  # PyTorch's gates are i, f, g, o
    lasting = torch.log(1 + torch.rand(size) * max(steps - 2, 0))
    with torch.no_grad():
        layer.get_parameter("bias_ih_l0")[: 2 * size] = torch.cat([-lasting, lasting])
        layer.get_parameter("bias_hh_l0")[: 2 * size] = 0
