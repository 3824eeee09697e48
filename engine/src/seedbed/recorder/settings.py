"""Settings of any kind as the plain YAML of a record, within what its readers accept."""

import argparse
import dataclasses
import enum
import hashlib
import itertools
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

_MOST_ITEMS = 500  # of a list or a mapping; of a longer one, its digest
_MOST_CHARACTERS = 4000
_MOST_LEVELS = 16  # also of a container that holds itself
_MOST_NODES = 4000


def plain(settings: object) -> Any:
    """Return settings as mappings, lists, texts and numbers; of other values, their repr."""
    nodes = itertools.count()

    def convert(value: Any, level: int) -> Any:
        number = next(nodes)
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool):
            return value
        if type(value) is float or (type(value) is int and abs(value) < 1 << 64):
            return value
        inside = _inside(value)
        if inside is None:
            return _text(value)
        if len(inside) > _MOST_ITEMS or number > _MOST_NODES or level > _MOST_LEVELS:
            return f"{type(value).__name__} of {len(inside)}, SHA-256 {_digest(_repr(value))}"
        if isinstance(inside, dict):
            return {_text(key): convert(item, level + 1) for key, item in inside.items()}
        return [convert(item, level + 1) for item in inside]

    return convert({} if settings is None else settings, 0)


def config_yaml(settings: dict[str, Any], every_steps: int) -> str:
    """Return the config.yaml of plain settings, with what readers of a record ask for.

    Args:
        every_steps: between two fingerprints.
    """
    own: dict[str, Any] = {"recorder": {"version": __version__}}  # a run of train.py has none
    own["fingerprint"] = {"every_steps": every_steps}
    if type(settings.get("seed")) is int and "seeds" not in settings:
        own["seeds"] = dict.fromkeys(STREAMS, settings["seed"])
    text: str = yaml.safe_dump({**settings, **own}, sort_keys=False)
    if len(text) > untrusted.MAX_YAML_BYTES:
        raise InputError(
            f"settings: expected at most {untrusted.MAX_YAML_BYTES:,} bytes as YAML, got "
            f"{len(text):,}; leave out what is data"
        )
    return text


def _inside(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return what a container holds; None for anything else."""
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | range):
        return list(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, argparse.Namespace | types.SimpleNamespace):
        return dict(vars(value))
    return None


def _text(value: Any) -> str:
    """Return anything as a text that a reader takes: no address, nothing to resolve, not long."""
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
        text = re.sub(r" at 0x[0-9a-fA-F]+", "", _repr(value))
    text = text.encode(errors="backslashreplace").decode()  # half a surrogate pair is no YAML
    if len(text) > _MOST_CHARACTERS:
        text = f"{text[:80]}... {len(text)} characters, SHA-256 {_digest(text)}"
    return text.replace("${", "$ {")


def _repr(value: object) -> str:
    try:
        return repr(value)
    except Exception as error:  # of somebody's class, or of too many levels
        return f"{type(value).__name__}, whose repr raises {type(error).__name__}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()[:16]
