"""Initial weights from another run, or any file that `torch.load` reads with `weights_only`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seedbed.errors import InputError, one_line
from seedbed.training import checkpoint
from seedbed.training.state import matching


class Loaded:
    """Loads the weights of a file into a model: `model._target_: seedbed.weights.Loaded`.

    The file's SHA-256 is part of the record, like that of every file that `model` names.

    Args:
        file: a Seedbed checkpoint, such as best.pt, or a `state_dict`.
        skip: patterns (`head.*`) of weights and buffers that keep their initial values.
    """

    def __new__(cls, model: nn.Module, file: str, skip: Sequence[str] = ()) -> nn.Module:  # type: ignore[misc]
        built, read = model.state_dict(), _read(Path(file))
        skipped = matching("model.skip", (*built, *read), tuple(skip))
        chosen = {name: value for name, value in read.items() if name not in skipped}
        try:
            model.load_state_dict(chosen | {name: built[name] for name in skipped & built.keys()})
        except RuntimeError as error:
            raise InputError(
                f"model.file: expected the weights of {type(model).__name__}, got {file} "
                f"({one_line(error)}); leave out what differs by model.skip"
            ) from None
        return model


def _read(path: Path) -> dict[str, Tensor]:
    """Return the weights and buffers in a file, by name; nothing in it is executed."""
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
        state = checkpoint.load(path)["model"] if "format_version" in state else state
        if not all(isinstance(value, Tensor) for value in state.values()):
            raise TypeError("it holds others")
    except Exception as error:  # a file may fail in any way
        raise InputError(
            f"model.file: expected a file with tensors by name, got {path} ({one_line(error)})"
        ) from None
    return state  # type: ignore[no-any-return]
