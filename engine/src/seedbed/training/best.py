"""The weights that are evaluated: the best ones in best.pt, and those that a method swaps in."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from seedbed import fingerprint, record
from seedbed.errors import InputError
from seedbed.names import SWAP
from seedbed.training import checkpoint
from seedbed.training.callbacks import unchanged
from seedbed.training.optimizers import labelled, optimizer_tensors, restore_optimizer
from seedbed.training.state import Progress, TrainingState
from seedbed.training.step import seed_draws


def swaps(training: TrainingState) -> bool:
    """Return whether the method evaluates other weights than those that it trains."""
    return training.overrides("on_evaluation_start")


@contextmanager
def swapped(training: TrainingState) -> Iterator[None]:
    """Let the method swap in the weights to evaluate; on exit, restore all bits of the model.

    Raises:
        InputError: the optimizers, or weights that share memory, are not as they were.
    """
    if not swaps(training):
        yield
        return
    model, optimizers = training.model, training.optimizers.values()

    def traces() -> tuple[int, str]:
        tensors = [*model.parameters(), *model.buffers(), *optimizer_tensors(*optimizers)]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        options = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        return int(fingerprint.of_tensors(tensors)), repr(options)

    refusal = (
        "method: expected on_evaluation_end to undo what on_evaluation_start does, got other "
        f"weights, optimizer state or options after it in {type(training.method).__name__}"
    )
    with unchanged(model, traces, refusal):
        last = checkpoint.encode(checkpoint.capture_model(model))  # a GPU's memory may be full
        _call(training, "on_evaluation_start")
        try:
            yield
        finally:
            _call(training, "on_evaluation_end")
            # Swapping back may round.
            checkpoint.restore_model(model, checkpoint.decode(last))


@torch.no_grad()
def _call(training: TrainingState, hook: str) -> None:
    seed_draws(training, 0, SWAP)
    getattr(training.method, hook)(training.model, training.optimizers)


def restore(training: TrainingState, state: Mapping[str, Any]) -> None:
    """Restore the weights of a checkpoint for evaluations only."""
    checkpoint.restore_model(training.model, state)
    if swaps(training) and not state.get("swapped"):
        for name, optimizer in labelled(training.optimizers).items():
            restore_optimizer(optimizer, state[name])
        _call(training, "on_evaluation_start")


def save_best(folder: Path, training: TrainingState, progress: Progress) -> None:
    """Write best.pt if the checkpoint that was just saved has the best weights.

    If the process is killed in between, the resumed run writes best.pt.
    """
    if progress.best_step == progress.step and progress.best_metric is not None:
        with swapped(training):
            state = {
                "format_version": record.FORMAT_VERSION,
                "step": progress.step,
                "metric": progress.best_metric,
                "swapped": swaps(training),
                **checkpoint.capture_model(training.model),
            }
            checkpoint.save(state, folder / checkpoint.BEST)


@contextmanager
def best_weights(folder: Path, step: int, training: TrainingState) -> Iterator[None]:
    """Load the best weights, those of `step`; on exit, restore the last ones bit for bit.

    Raises:
        InputError: `best.pt` is missing, damaged, or of another step.
    """
    path = folder / checkpoint.BEST
    state = checkpoint.load(path, training.device)
    if state.get("step") != step:
        raise InputError(
            f"{path}: expected the best weights, of step {step}, got those of step "
            f"{state.get('step')}; to test the last ones, resume with trainer.test_weights=last "
            "--allow-changed"
        )
    last = checkpoint.encode(checkpoint.capture_model(training.model))
    try:
        checkpoint.restore_model(training.model, state)
        yield
    finally:
        checkpoint.restore_model(training.model, checkpoint.decode(last))
