"""What is trained, when things happen, where a run stands, and what an evaluation found."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import tasks


@dataclass(frozen=True)
class TrainingState:
    """What is trained, and how a batch reaches it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: tasks.Task
    device: torch.device
    autocast: bool = False
    channels_last: bool = False
    gradient_clip_norm: float | None = None
    dropout_seed: int | None = 0  # None: global generators are left alone
    strict: bool = False  # what cannot promise bits is an error


@dataclass(frozen=True)
class Plan:
    """When things happen, in steps and epochs; 0 means never."""

    total_steps: int
    steps_per_epoch: int
    log_every_steps: int
    validate_every_epochs: int
    checkpoint_every_steps: int
    fingerprint_every_steps: int
    early_stopping_patience: int | None
    learning_rate_factor: Callable[[int], float]

    def validates_after(self, step: int) -> bool:
        """Return whether a validation follows this step."""
        epoch, rest = divmod(step, self.steps_per_epoch)
        every = self.validate_every_epochs
        return step == self.total_steps or bool(every and epoch and not rest and epoch % every == 0)

    def is_due(self, every_steps: int, step: int) -> bool:
        """Return whether something that happens every so many steps, and in the last, is due."""
        return bool(every_steps) and (step % every_steps == 0 or step == self.total_steps)

    def is_over(self, progress: "Progress") -> bool:
        """Return whether training ends here: after all steps, or early without any gain."""
        patience = self.early_stopping_patience
        stale = patience is not None and progress.validations_without_gain >= patience
        return stale or progress.step == self.total_steps


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint holds beside the weights and the optimizer."""

    step: int = 0
    validated_step: int = 0
    best_step: int = 0
    best_metric: float | None = None
    validations_without_gain: int = 0
    seconds: float = 0.0

    def state(self) -> dict[str, Any]:
        """Return the plain values for a checkpoint."""
        return asdict(self)

    def note_validation(self, metric: float, higher_is_better: bool) -> bool:
        """Bring progress up to date after a validation; return whether it was the best so far."""
        best, self.validated_step = self.best_metric, self.step
        if best is None or math.isnan(best):
            is_best = True
        else:
            is_best = metric > best if higher_is_better else metric < best
        if is_best:
            self.best_metric, self.best_step = metric, self.step
        self.validations_without_gain = 0 if is_best else self.validations_without_gain + 1
        return is_best


@dataclass(frozen=True)
class Evaluation:
    """What was found on a data set.

    Attributes:
        loss, metric: means over the samples.
        predictions: one of each sample, (N,), on the CPU and in the order of the samples.
        targets: the first number of each sample's target, (N,).
        output_hashes: of all that the model returned, int64 (batches,).
    """

    loss: float
    metric: float
    predictions: Tensor
    targets: Tensor
    output_hashes: Tensor
