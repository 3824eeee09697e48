"""The best weights of a run, `best.pt`: of the step that the newest checkpoint calls the best.

A checkpoint is saved first. Who is killed between the two leaves best.pt to the one that resumes.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from seedbed.errors import InputError
from seedbed.training import checkpoint
from seedbed.training.state import Progress


def save(folder: Path, model: nn.Module, progress: Progress) -> None:
    """Write the weights of a step that a checkpoint was just saved of, if they are the best."""
    if progress.best_step == progress.step and progress.best_metric is not None:
        state = checkpoint.capture_best(model, progress.step, progress.best_metric)
        checkpoint.save(state, folder / checkpoint.BEST)


@contextmanager
def weights_of(folder: Path, step: int, model: nn.Module, device: torch.device) -> Iterator[None]:
    """Give a model the best weights, which are of `step`; afterwards the last ones, to the bit.

    Raises:
        InputError: `best.pt` is missing, damaged, or of another step.
    """
    path = folder / checkpoint.BEST
    state = checkpoint.load(path, device)
    if state.get("step") != step:
        raise InputError(
            f"{path}: expected the best weights, of step {step}, got those of step "
            f"{state.get('step')}; to test the last ones, resume with trainer.test_weights=last "
            "--allow-changed"
        )
    last = checkpoint.capture_model(model)
    last["buffers"] = {k: None if b is None else b.detach() for k, b in last["buffers"].items()}
    last = copy.deepcopy(last)  # what was captured is the live memory
    try:
        checkpoint.restore_model(model, state)
        yield
    finally:
        checkpoint.restore_model(model, last)
