"""Guessing each next token of a text."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from project.data.sums import END, NO_TARGET, decode, encode
from seedbed.methods import Method


class LanguageModel(Method):
    """Cross-entropy of each token that is a target; `NO_TARGET` marks the others."""

    def __init__(self, prompts: Sequence[str], length: int, temperature: float) -> None:
        """Describe the samples that are printed at the end: a line each, of so many tokens."""
        self.prompts, self.length, self.temperature = prompts, length, temperature

    def training_step(self, model: nn.Module, batch: Any, optimizer: str) -> Mapping[str, Tensor]:
        """Return the mean over the tokens; a shard with more of them counts more."""
        logits, targets = model(batch.inputs), batch.targets
        count = (targets != NO_TARGET).sum()
        return {"loss": _entropy(logits, targets) / count, "weight": count}

    def validation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return two numbers for the perplexity, and for each sample whether all was right."""
        logits, targets = model(batch.inputs), batch.targets
        is_target = targets != NO_TARGET
        mistakes = ((logits.argmax(dim=2) != targets) & is_target).sum(dim=1)
        return {
            "loss": (_entropy(logits, targets), is_target.sum()),
            "exact": (mistakes == 0).float(),
            "predictions": mistakes,
        }

    def compute(self, values: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the means, and the perplexity of the whole set."""
        means = super().compute(values)
        return {**means, "perplexity": math.exp(means["loss"])}

    def on_train_end(self, model: nn.Module, log: Callable[[str], None]) -> None:
        """Print how the model continues the prompts."""
        device = next(model.parameters()).device
        for prompt in self.prompts:
            tokens = encode(prompt).to(device)[None]
            written = decode(model.generate(tokens, self.length, self.temperature)[0])  # type: ignore[operator]
            log(written.partition(END)[0])


def _entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the sum over all targets, in nats."""
    flat = logits.flatten(0, 1), targets.flatten()
    return F.cross_entropy(*flat, ignore_index=NO_TARGET, reduction="sum")
