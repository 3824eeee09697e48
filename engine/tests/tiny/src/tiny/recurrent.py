"""Another model, not imported by runs of the default one."""

from collections.abc import Sequence

from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent layer and a linear one on its last step; an image is a sequence of
    its rows."""

    def __init__(
        self,
        input_shape: Sequence[int],
        outputs: int,
        cell: str,
        hidden_size: int,
        dropout: float,
    ) -> None:
        super().__init__()
        kind = {"rnn": nn.RNN, "lstm": nn.LSTM}[cell]
        self.layer = kind(input_shape[-1], hidden_size, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(hidden_size, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map sequences, float32 (B, T, F) or (B, 1, T, F), to float32 (B, outputs)."""
        rows = inputs.flatten(1, 2) if inputs.dim() == 4 else inputs
        states = self.layer(rows)[0]
        outputs: Tensor = self.head(self.dropout(states[:, -1]))
        return outputs.float()
