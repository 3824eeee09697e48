"""Checkpoints: written so that a good one is always there, checked when they are read.

A checkpoint is what `torch.save` makes, so `torch.load(path, weights_only=True)` opens it
anywhere, with its SHA-256 as the comment at the end of the zip archive. It holds tensors, numbers
and texts only; a file that holds anything else is refused, never executed.
"""

import hashlib
import io
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import deferred, record
from seedbed.errors import InputError

LAST, PREVIOUS = record.LAST_CHECKPOINTS
BEST = "best.pt"
_PREFIX = b"seedbed sha256 "
_COMMENT_BYTES = len(_PREFIX) + 64


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint, synced and renamed into place; `last.pt` steps aside to `previous.pt`."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    # A zip archive ends with the length of its comment, 0 here, in two bytes.
    body = buffer.getvalue()[:-2] + _COMMENT_BYTES.to_bytes(2, "little")
    temporary = path.with_name(f".{path.name}.new")
    record.write_atomically(temporary, body + _PREFIX + hashlib.sha256(body).hexdigest().encode())
    if path.name == LAST and path.exists():
        os.replace(path, path.with_name(PREVIOUS))
    os.replace(temporary, path)
    record.sync_folder(path.parent)


def unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that `state_dict` leaves out, by name: a step may change them, too."""
    saved = model.state_dict().keys()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


@torch.no_grad()
def load_model(model: nn.Module, state: dict[str, Any]) -> None:
    """Load a checkpoint's weights and buffers into a model.

    Raises:
        RuntimeError, KeyError: they are another model's.
    """
    model.load_state_dict(state["model"])
    buffers = dict(model.named_buffers())
    for name, value in state.get("unsaved_buffers", {}).items():
        buffers[name].copy_(value)


@torch.no_grad()
def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load a checkpoint's optimizer state, in the memory order that the parameters have here.

    PyTorch keeps the order that it was saved in, which on a GPU is another than on a CPU, and its
    fused kernels go through memory as it lies.

    Raises:
        KeyError, RuntimeError, ValueError: it is another optimizer's.
    """
    with deferred.without_compiler():
        optimizer.load_state_dict(state)
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            alike = isinstance(value, Tensor) and value.shape == parameter.shape
            if alike and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU.

    Raises:
        InputError: it is not there, is damaged, or is not one of Seedbed's.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: expected a checkpoint, got {error.strerror}") from None
    body, comment = content[:-_COMMENT_BYTES], content[-_COMMENT_BYTES:]
    if not comment.startswith(_PREFIX):
        raise InputError(f"{path}: expected a checkpoint of Seedbed, got a cut-off or foreign file")
    if comment[len(_PREFIX) :] != hashlib.sha256(body).hexdigest().encode():
        raise InputError(f"{path}: expected the content that was written, got other bytes")
    try:
        state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a made-up file provokes
        raise InputError(
            f"{path}: expected tensors and numbers, got something else ({str(error)[:80]!r})"
        ) from None
    if not isinstance(state, dict) or state.get("format_version") != record.FORMAT_VERSION:
        raise InputError(f"{path}: expected a checkpoint of format {record.FORMAT_VERSION}")
    return state


def load_newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """Read `last.pt`, or the one before it if that is damaged.

    Returns:
        The state, or None if there is no checkpoint at all; and what is wrong with each one that
        was passed over.

    Raises:
        InputError: there are checkpoints, and all of them are damaged.
    """
    problems: list[str] = []
    for name in record.LAST_CHECKPOINTS:
        if not (folder / name).exists():
            continue
        try:
            return load(folder / name), problems
        except InputError as error:
            problems.append(str(error))
    if problems:
        raise InputError(f"{'; '.join(problems)}; start anew by scripts/verify.py or train.py")
    return None, problems


def discard_damaged(folder: Path) -> None:
    """Put the checkpoint before a damaged `last.pt` in its place.

    Otherwise the next one that is saved would push the damaged one over the good one.
    """
    os.replace(folder / PREVIOUS, folder / LAST)
    record.sync_folder(folder)
