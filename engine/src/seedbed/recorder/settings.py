"""Settings of any kind as the plain YAML of a record, within what its readers accept."""

import argparse
import dataclasses
import enum
import hashlib
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

MARK = "recorder"  # the section that tells such a record from one of train.py
_MOST_ITEMS = 500  # of a list or a mapping; of a longer one, its digest
_MOST_CHARACTERS = 4000
_MOST_LEVELS = 16
_MOST_NODES = 4000
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(settings: object) -> dict[str, Any]:
    """Return settings as mappings, lists, texts and numbers; of other values, their repr.

    Args:
        settings: a mapping, a dataclass, a `Namespace`, or None for none.

    Raises:
        InputError: they are of another kind.
    """
    found = _Plain().of({} if settings is None else settings)
    if not isinstance(found, dict):
        raise InputError(
            "settings: expected a mapping or a dataclass, got "
            f"{type(settings).__name__}; give names to what it holds"
        )
    return found


def config_yaml(found: dict[str, Any], every_steps: int) -> str:
    """Return the config.yaml of plain settings, with what readers of a record ask for.

    Args:
        every_steps: between two fingerprints.

    Raises:
        InputError: they are more than a record may hold.
    """
    own: dict[str, Any] = {MARK: {"version": __version__}}
    own["fingerprint"] = {"every_steps": every_steps}
    if type(found.get("seed")) is int and "seeds" not in found:
        own["seeds"] = dict.fromkeys(STREAMS, found["seed"])
    text: str = yaml.safe_dump({**found, **own}, sort_keys=False)
    if len(text) > untrusted.MAX_YAML_BYTES:
        raise InputError(
            f"settings: expected at most {untrusted.MAX_YAML_BYTES:,} bytes as YAML, got "
            f"{len(text):,}; leave out what is data"
        )
    return text


class _Plain:
    """Turns values into what YAML has a word for: others become a text."""

    def __init__(self) -> None:
        self._nodes = 0
        self._above: list[int] = []  # the containers that this one is in

    def of(self, value: Any) -> Any:
        """Return a value of mappings, lists, texts and numbers."""
        self._nodes += 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, enum.Enum):
            return value.name
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, int) and abs(value) < 1 << 64:
            return int(value)
        if isinstance(value, float):
            return float(value)
        inside = _inside(value)
        if inside is None:
            return _text(value)
        if len(inside) > _MOST_ITEMS or self._nodes > _MOST_NODES:
            return f"{type(value).__name__} of {len(inside)}, SHA-256 {_digest(_repr(value))}"
        if id(value) in self._above or len(self._above) > _MOST_LEVELS:
            return _clipped(_repr(value))
        self._above.append(id(value))
        if isinstance(inside, dict):
            found: Any = {_text(key): self.of(item) for key, item in inside.items()}
        else:
            found = [self.of(item) for item in inside]
        self._above.pop()
        return found


def _inside(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Return what a container holds; None for anything else."""
    if isinstance(value, DictConfig | ListConfig):
        value = OmegaConf.to_container(value, resolve=True)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return dict(value._asdict())
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
    if isinstance(value, str):
        # A reader refuses what OmegaConf would resolve, and what it takes for a missing value.
        value = value.encode(errors="backslashreplace").decode()  # half a surrogate pair is no YAML
        return repr(value) if value == "???" else _clipped(value.replace("${", "$ {"))
    if isinstance(value, PurePath | torch.dtype | torch.device):
        return str(value)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"array {value.shape}, {value.dtype}, SHA-256 {_digest(value.tobytes())}"
    if isinstance(value, torch.Tensor) and not (value.is_meta or value.is_nested):
        bits = fingerprint.text(int(fingerprint.of_tensors([value.detach()])))
        return f"tensor {tuple(value.shape)}, {value.dtype}, fingerprint {bits}"
    if isinstance(value, type | types.FunctionType | types.BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    return _clipped(_ADDRESS.sub("", _repr(value)).replace("${", "$ {"))


def _repr(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:  # of somebody's class, or of too many levels
        text = f"{type(value).__name__}, whose repr raises {type(error).__name__}"
    return text.encode(errors="backslashreplace").decode()


def _clipped(text: str) -> str:
    """Return a text, or the start of a long one and a digest of the whole."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    return f"{text[:80]}... {len(text)} characters, SHA-256 {_digest(text)}"


def _digest(content: str | bytes) -> str:
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    return hashlib.sha256(data).hexdigest()[:16]
