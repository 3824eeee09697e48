"""A small GPT that maps tokens to the logits of each next token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GPT(nn.Module):
    """Transformer blocks over embedded tokens, as in GPT-2 (Radford et al. 2019).

    The arguments are explained in configs/model/gpt.yaml.
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        width: int,
        layers: int,
        heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(
            *(Block(width, heads, dropout) for _ in range(layers))
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        # tied as in GPT-2: fewer weights, and better ones
        self.head.weight = self.tokens.weight
        self.apply(_initialize)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens, int64 (B, T), to next-token logits, float32 (B, T,
        vocabulary)."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(self.dropout(x))))
        return logits.float()

    @torch.no_grad()
    def generate(self, tokens: Tensor, steps: int, temperature: float = 0.0) -> Tensor:
        """Append `steps` new tokens to each sequence, int64 (B, T); return (B, T +
        steps).

        Temperature 0 takes the likeliest token; above 0, the global generator draws
        one.
        """
        for _ in range(steps):
            logits = self(tokens[:, -self.places.num_embeddings :])[:, -1]
            if temperature:
                chances = torch.softmax(logits / temperature, dim=1)
                following = torch.multinomial(chances, 1)
            else:
                following = logits.argmax(dim=1, keepdim=True)
            tokens = torch.cat([tokens, following], dim=1)
        return tokens


class Block(nn.Module):
    """Pre-norm transformer block: causal self-attention, then an MLP, each with a
    residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.rate = dropout
        self.norm_1 = nn.LayerNorm(width)
        self.norm_2 = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map float32 (B, T, width) to (B, T, width)."""
        x = x + self.dropout(self.mix(self._attend(self.norm_1(x))))
        outputs: Tensor = x + self.dropout(self.mlp(self.norm_2(x)))
        return outputs

    def _attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (
            self.attention(x)
            .view(batch, length, 3, self.heads, -1)
            .permute(2, 0, 3, 1, 4)
        )
        query, key, value = heads  # (B, heads, T, width / heads) each
        rate = self.rate if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            query, key, value, dropout_p=rate, is_causal=True
        )
        return mixed.transpose(1, 2).reshape(batch, length, width)


def _initialize(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
