"""Weights to start from: of another run, or of any file that `torch.load` reads as data."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seedbed.errors import InputError, one_line
from seedbed.training import checkpoint


class Loaded:
    """Gives a model the weights of a file: `model._target_: seedbed.weights.Loaded`.

    The file's SHA-256 is part of the record, as that of every file that `model` names.
    """

    def __new__(cls, model: nn.Module, file: str, skip: Sequence[str] = ()) -> nn.Module:  # type: ignore[misc]
        """Return the model, with the weights of the file.

        Args:
            model: as another `_target_` builds it.
            file: a checkpoint of Seedbed's, such as best.pt, or a `state_dict`.
            skip: patterns (`head.*`) of weights and buffers that stay as they were built.

        Raises:
            InputError: there is no such file, or its weights are those of another model.
        """
        state = {name: value for name, value in read(Path(file)).items() if not _fits(name, skip)}
        own = {name: value for name, value in model.state_dict().items() if not _fits(name, skip)}
        missing, more = sorted(own.keys() - state.keys()), sorted(state.keys() - own.keys())
        others = [name for name in own if name in state and own[name].shape != state[name].shape]
        for what, names in (("lacks", missing), ("has also", more), ("has others of", others)):
            if names:
                raise InputError(
                    f"model.file: expected the weights of {type(model).__name__}, got {file}, "
                    f"which {what} {', '.join(names[:3])}; name a file of this model, or leave "
                    "out what differs by model.skip"
                )
        model.load_state_dict(state, strict=False)
        return model


def read(path: Path) -> dict[str, Tensor]:
    """Return the weights and buffers in a file, by name; nothing in it is executed.

    Raises:
        InputError: it holds something else.
    """
    try:
        state: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a file provokes
        raise InputError(
            f"model.file: expected a file with tensors by name, got {path} ({one_line(error)}); "
            "save a state_dict"
        ) from None
    if isinstance(state, dict) and "format_version" in state:
        state = checkpoint.load(path)["model"]
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise InputError(
            f"model.file: expected tensors by name in {path}, got others; save a state_dict"
        )
    return state


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
