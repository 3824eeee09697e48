"""Checkpoints: written so that a good one is always there, checked when they are read.

A checkpoint is what `torch.save` makes, so `torch.load(path, weights_only=True)` opens it
anywhere, with its SHA-256 as the comment at the end of the zip archive. A file that holds anything
else than that opens is refused, never executed.
"""

import hashlib
import io
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten_with_path

from seedbed import record
from seedbed.errors import InputError, one_line
from seedbed.training import capture as states
from seedbed.training.state import Progress, TrainingState

LAST, PREVIOUS = record.LAST_CHECKPOINTS
BEST = "best.pt"
_PREFIX = b"seedbed sha256 "
_COMMENT_BYTES = len(_PREFIX) + 64
_CPU = torch.device("cpu")
# What `restore` raises for a checkpoint of another model or optimizer.
MISMATCH = (AttributeError, KeyError, RuntimeError, TypeError, ValueError)


def capture(training: TrainingState, progress: Progress, **notes: Any) -> dict[str, Any]:
    """Return a checkpoint of a run: where it stands, its model and its optimizers.

    Args:
        notes: what the run's record adds, by keys of its own.
    """
    return {
        "format_version": record.FORMAT_VERSION,
        "progress": asdict(progress),
        **notes,
        **states.capture(training.model, training.optimizers),
        **training.callbacks.state(),
    }


def capture_best(model: nn.Module, step: int, metric: float) -> dict[str, Any]:
    """Return what best.pt holds: the weights of a step."""
    named = {"format_version": record.FORMAT_VERSION, "step": step, "metric": metric}
    return named | states.capture_model(model)


def restore(training: TrainingState, state: Mapping[str, Any]) -> Progress:
    """Bring model and optimizer into the state of a checkpoint; return where its run stood."""
    _ = training.to_train  # as it is built: what is restored may be frozen for a while
    states.restore(training.model, training.optimizers, state)
    training.callbacks.restore(state)
    return progress_of(state)


def progress_of(state: Mapping[str, Any]) -> Progress:
    """Return where the run of a checkpoint stood; the beginning where there is none."""
    return Progress(**state.get("progress", {}))


def save(state: dict[str, Any], path: Path, steps_aside: bool = True) -> None:
    """Write a checkpoint, synced and renamed into place.

    Args:
        steps_aside: let `last.pt` become `previous.pt`, which has another step then.
    """
    buffer = io.BytesIO()
    torch.save(state, buffer)
    # A zip archive ends with the length of its comment, 0 here, in two bytes.
    body = buffer.getvalue()[:-2] + _COMMENT_BYTES.to_bytes(2, "little")
    temporary = path.with_name(f".{path.name}.new")
    record.write_atomically(temporary, body + _PREFIX + hashlib.sha256(body).hexdigest().encode())
    if steps_aside and path.name == LAST and path.exists():
        os.replace(path, path.with_name(PREVIOUS))
    os.replace(temporary, path)
    record.sync_folder(path.parent)


def encode(state: dict[str, Any]) -> bytes:
    """Return a checkpoint as bytes that `decode` brings back, and so would a file.

    Raises:
        InputError: nothing brings an entry back; it names the entry.
    """
    buffer = io.BytesIO()
    try:
        torch.save(state, buffer)
        buffer.seek(0)
        torch.load(buffer, map_location="meta", weights_only=True)  # which reads no numbers
    except Exception:  # whatever the classes of users provoke
        for path, leaf in tree_flatten_with_path(state)[0]:
            try:
                torch.save(leaf, buffer := io.BytesIO())
                decode(buffer.getvalue())
            except Exception:
                name = ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path)
                raise InputError(
                    f"{name}: expected tensors, numbers, texts, or lists, tuples and dictionaries "
                    f"of them, got {type(leaf).__module__}.{type(leaf).__qualname__}; keep it as "
                    "one of those, since no checkpoint brings it back"
                ) from None
        raise
    return buffer.getvalue()


def decode(content: bytes, device: torch.device = _CPU) -> Any:
    """Return the checkpoint in a file's content; tensors that were not on a CPU go to a device."""

    def place(storage: Any, location: str) -> Any:
        where = location if location == "cpu" else str(device)
        return torch.serialization.default_restore_location(storage, where)  # type: ignore[no-untyped-call]

    return torch.load(io.BytesIO(content), map_location=place, weights_only=True)


def load(path: Path, device: torch.device = _CPU) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        device: for the tensors that were not on a CPU.

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
        state: Any = decode(content, device)
    except Exception as error:  # whatever a made-up file provokes
        raise InputError(
            f"{path}: expected tensors and numbers, got something else ({one_line(error, 80)})"
        ) from None
    if not isinstance(state, dict) or state.get("format_version") != record.FORMAT_VERSION:
        raise InputError(f"{path}: expected a checkpoint of format {record.FORMAT_VERSION}")
    return state


def load_newest(
    folder: Path, device: torch.device = _CPU
) -> tuple[dict[str, Any] | None, list[str]]:
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
            return load(folder / name, device), problems
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
