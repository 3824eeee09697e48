"""Conversion of values passed to the Recorder, of any type, to tensors, numbers and YAML."""

import argparse
import dataclasses
import re
import types
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor, nn

from seedbed import __version__
from seedbed.data.tensors import as_text
from seedbed.data.tensors import contents as contents
from seedbed.errors import InputError
from seedbed.names import STREAMS
from seedbed.record import untrusted


def sample_ids(ids: Any) -> list[Tensor]:
    """Return sample ids as tensors: int64 (B,) for a list or range of ints, else `contents`."""
    if isinstance(ids, range | list | tuple) and all(type(each) is int for each in ids):
        ids = np.array(ids, dtype=np.int64 if max(map(abs, ids), default=0) < 1 << 63 else object)
    return contents(ids)


def named(values: Any, name: str = "") -> dict[str, Any]:
    """Return values that are not None, by key of a mapping, index of a list, or the name given."""
    if isinstance(values, list | tuple):
        values = dict(enumerate(values))
    elif not isinstance(values, Mapping):
        values = {name: values}
    return {str(key): value for key, value in values.items() if value is not None}


def scalars(values: Any, name: str) -> dict[str, Tensor]:
    """Return numbers by name (see `named`) as copies of shape (); InputError if not scalars."""
    copies = {}
    for key, value in named(values, name).items():
        is_tensor = isinstance(value, Tensor)
        copy = value.detach().clone() if is_tensor else torch.tensor(value, dtype=torch.float64)
        if copy.numel() != 1:
            shape = tuple(copy.shape)
            raise InputError(f"{name}.{key}: expected a scalar, got shape {shape}; take its mean")
        copies[key] = copy.reshape(())
    return copies


def column(name: str) -> str:
    """Return the column of a name: characters that the reader would reject become _."""
    return re.sub(r"[^\w.@/-]", "_", name)


def gradients(networks: Iterable[nn.Module]) -> list[Tensor]:
    """Return the gradient of each trainable parameter, zeros if it has none."""
    parameters = (p for network in networks for p in network.parameters() if p.requires_grad)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def plain(settings: Any) -> Any:
    """Return settings as dicts, lists, numbers, booleans and None; other values as strings."""
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
        return {as_text(key): plain(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple | range):
        return list(map(plain, settings))
    is_number = type(settings) is float or (type(settings) is int and abs(settings) < 1 << 64)
    is_plain = is_number or settings is None or isinstance(settings, bool)
    return settings if is_plain else as_text(settings)


def config_yaml(settings: object, every_steps: int) -> tuple[str, Any]:
    """Return config.yaml for settings, with the keys that readers of records need, and the seed.

    Raises:
        InputError: settings are not a mapping, too large, or nested too deeply for the readers.
    """
    try:
        values = plain({} if settings is None else settings)
        if not isinstance(values, Mapping):
            raise ValueError(f"{type(settings).__name__} instead of a mapping or a dataclass")
        own: dict[str, Any] = {"recorder": {"version": __version__}}  # train.py writes none
        own["fingerprint"] = {"every_steps": every_steps}
        if type(values.get("seed")) is int and "seeds" not in values:
            own["seeds"] = dict.fromkeys(STREAMS, values["seed"])
        text: str = yaml.safe_dump({**values, **own}, sort_keys=False)
        untrusted.parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"settings: expected values that config.yaml can hold, got {error}; leave data out"
        ) from None
    return text, values.get("seed")
