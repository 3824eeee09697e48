"""Recurrent networks that answer from the last step of a sequence."""

from collections.abc import Sequence

from torch import Tensor, nn

CELLS = {"rnn": nn.RNN, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """Recurrent layers with dropout between them, then a linear layer on the last step.

    Dropout is a layer of its own: the one inside cuDNN has a state that cannot be restored.
    """

    def __init__(
        self, input_shape: Sequence[int], outputs: int, cell: str, hidden_size: int, layers: int, dropout: float
    ) -> None:
        """Build the network for sequences of shape (T, F); an image (1, H, W) is H steps of W."""
        super().__init__()
        sizes = [input_shape[-1]] + [hidden_size] * layers
        kind = CELLS[cell]
        self.layers = nn.ModuleList(
            kind(a, b, batch_first=True) for a, b in zip(sizes, sizes[1:], strict=False)
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map sequences, float32 (B, T, F) or (B, 1, T, F), to float32 (B, outputs)."""
        x = inputs.squeeze(1) if inputs.dim() == 4 else inputs
        for layer in self.layers:
            x = self.dropout(layer(x)[0])
        out: Tensor = self.head(x[:, -1])
        return out
