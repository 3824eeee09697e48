"""Settings of any kind as the plain YAML of a record, within what its readers accept."""

import argparse
import dataclasses
import enum
import re
import types
from collections.abc import Mapping, Set
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from seedbed import __version__, fingerprint
from seedbed.errors import InputError
from seedbed.names import STREAMS
from seedbed.record import untrusted
from seedbed.recorder.step import contents


def plain(settings: Any) -> Any:
    """Return settings as mappings, lists, texts and numbers; of other values, their repr."""
    if isinstance(settings, np.generic):
        settings = settings.item()
    elif isinstance(settings, DictConfig | ListConfig):
        settings = OmegaConf.to_container(settings, resolve=True)
    elif isinstance(settings, tuple) and hasattr(settings, "_asdict"):
        settings = settings._asdict()
    elif dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        settings = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    elif isinstance(settings, argparse.Namespace | types.SimpleNamespace):
        settings = vars(settings)
    elif isinstance(settings, Set):
        settings = sorted(settings, key=repr)
    if isinstance(settings, Mapping):
        return {_text(key): plain(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple | range):
        return list(map(plain, settings))
    is_number = type(settings) is float or (type(settings) is int and abs(settings) < 1 << 64)
    is_plain = is_number or settings is None or isinstance(settings, bool)
    return settings if is_plain else _text(settings)


def config_yaml(settings: object, every_steps: int) -> tuple[str, Any]:
    """Return the config.yaml of settings, with what readers of a record ask for, and its seed.

    Raises:
        InputError: the readers would not take it: it is too large, or nested too deep.
    """
    try:
        values = plain({} if settings is None else settings)
        own: dict[str, Any] = {"recorder": {"version": __version__}}  # a run of train.py has none
        own["fingerprint"] = {"every_steps": every_steps}
        if type(values.get("seed")) is int and "seeds" not in values:
            own["seeds"] = dict.fromkeys(STREAMS, values["seed"])
        text: str = yaml.safe_dump({**values, **own}, sort_keys=False)
        untrusted.parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"settings: expected what config.yaml can hold, got {error}; leave out what is data"
        ) from None
    return text, values.get("seed")


def _text(value: Any) -> str:
    """Return anything as a text that a reader takes: no address, nothing to resolve."""
    if isinstance(value, torch.Tensor | np.ndarray):
        bits = fingerprint.text(int(fingerprint.of_tensors(contents(value))))
        return f"{type(value).__name__} {tuple(value.shape)} {value.dtype}, fingerprint {bits}"
    if isinstance(value, enum.Enum):
        text = value.name
    elif isinstance(value, str | PurePath | torch.dtype | torch.device):
        text = repr(value) if value == "???" else str(value)
    elif isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        text = f"{value.__module__}.{value.__qualname__}"
    else:
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate pair is no YAML
    return text.replace("${", "$ {")
