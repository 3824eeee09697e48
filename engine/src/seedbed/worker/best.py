"""The best weights of a run, `best.pt`, in step with the checkpoint that the run goes on from.

They are newer than the checkpoint when a run is killed between a validation and the next one. If
what follows is not the same, they belong to steps that are in no record. So the best weights that
the checkpoint knows of are kept until the next checkpoint is saved.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from seedbed.errors import InputError
from seedbed.training import capture, checkpoint

_KNOWN = "best_of_last.pt"  # the best weights that last.pt knows of, if best.pt is newer than that


def save(state: dict[str, Any], folder: Path) -> None:
    """Write the best weights so far, of `step`, into a folder of checkpoints."""
    best, known = folder / checkpoint.BEST, folder / _KNOWN
    if best.exists() and not known.exists():
        os.replace(best, known)
    checkpoint.save(state, best)


def settle(folder: Path) -> None:
    """Forget older best weights: the checkpoint that was saved now knows of the newest."""
    (folder / _KNOWN).unlink(missing_ok=True)


def restore(folder: Path, step: int, comes_again: bool) -> str | None:
    """Let `best.pt` be what the checkpoint calls the best: that of `step`, 0 for none.

    Args:
        comes_again: whether the run will come to newer best weights again, to the same bits.

    Returns:
        What to print, if it will not: they are kept by a name of their own.
    """
    best, known = folder / checkpoint.BEST, folder / _KNOWN
    found, message = _step(best), None
    if found not in (None, step):
        if comes_again:
            best.unlink()
        else:
            aside = f"best_of_step_{found}.pt"
            os.replace(best, folder / aside)
            message = f"best.pt was of step {found}, which is not gone on from: it is now {aside}"
    if _step(best) is None and _step(known) == step:
        os.replace(known, best)
    settle(folder)
    return message


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
    last = capture.capture_model(model)
    last["buffers"] = {k: None if b is None else b.detach() for k, b in last["buffers"].items()}
    last = copy.deepcopy(last)  # what was captured is the live memory
    try:
        capture.restore_model(model, state)
        yield
    finally:
        capture.restore_model(model, last)


def _step(path: Path) -> int | None:
    """Return the step of saved weights; None if there are none that can be read."""
    try:
        return int(checkpoint.load(path)["step"]) if path.exists() else None
    except (InputError, KeyError, TypeError, ValueError):
        return None
