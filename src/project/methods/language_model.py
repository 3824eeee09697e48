"""Next-token prediction on text."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from project.data.sums import END, NO_TARGET, decode, encode
from seedbed.methods import Method


class LanguageModel(Method):
    """Next-token cross-entropy; targets equal to `NO_TARGET` are ignored."""

    def __init__(self, prompts: Sequence[str], length: int, temperature: float) -> None:
        """Configure the samples printed at the end: a line per prompt, `length` tokens
        at most."""
        self.prompts = prompts
        self.length = length
        self.temperature = temperature

    def training_step(
        self, model: nn.Module, batch: Any, optimizer: str
    ) -> Mapping[str, Tensor]:
        """Return the mean loss per target token, and their number as the weight of the
        shard."""
        logits = model(batch.inputs)
        targets = batch.targets
        count = (targets != NO_TARGET).sum()
        return {"loss": _entropy(logits, targets) / count, "weight": count}

    def validation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        """Return the loss as (sum, count), and each sample's exact match and number of
        mistakes."""
        logits = model(batch.inputs)
        targets = batch.targets
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
        """Log each prompt with its continuation by the model, up to the end of the
        line."""
        device = next(model.parameters()).device
        for prompt in self.prompts:
            tokens = encode(prompt).to(device)[None]
            written = decode(model.generate(tokens, self.length, self.temperature)[0])  # type: ignore[operator]
            log(written.partition(END)[0])


def _entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy summed over all targets, in nats."""
    flat = logits.flatten(0, 1), targets.flatten()
    return F.cross_entropy(*flat, ignore_index=NO_TARGET, reduction="sum")
