"""What the Recorder is given: values of any type, settings, and the run folder."""

import argparse
import dataclasses
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from torch import Tensor, nn

from seedbed import __version__, record
from seedbed.errors import InputError
from seedbed.names import STREAMS
from seedbed.pipeline.tensors import as_text, contents
from seedbed.record import untrusted
from seedbed.writer import Writer


def sample_ids(ids: Any) -> list[Tensor]:
    """Return sample ids as tensors: int64 (B,) for a list or range of ints, else
    `contents`."""
    if isinstance(ids, range | list | tuple) and all(type(each) is int for each in ids):
        ids = np.array(
            ids, dtype=np.int64 if max(map(abs, ids), default=0) < 1 << 63 else object
        )
    return contents(ids)


def named(values: Any, name: str = "") -> dict[str, Any]:
    """Return values that are not None, by key of a mapping, index of a list, or the
    name given."""
    if isinstance(values, list | tuple):
        values = dict(enumerate(values))
    elif not isinstance(values, Mapping):
        values = {name: values}
    return {str(key): value for key, value in values.items() if value is not None}


def scalars(values: Any, name: str) -> dict[str, Tensor]:
    """Return numbers by name (see `named`) as copies of shape (); InputError if not
    scalars."""
    copies = {}
    for key, value in named(values, name).items():
        is_tensor = isinstance(value, Tensor)
        copy = (
            value.detach().clone()
            if is_tensor
            else torch.tensor(value, dtype=torch.float64)
        )
        if copy.numel() != 1:
            shape = tuple(copy.shape)
            raise InputError(
                f"{name}.{key}: expected a scalar, got shape {shape}; take its mean"
            )
        copies[key] = copy.reshape(())
    return copies


def column(name: str) -> str:
    """Return the column of a name: characters that the reader would reject become _."""
    return re.sub(r"[^\w.@/-]", "_", name)


def gradients(networks: Iterable[nn.Module]) -> list[Tensor]:
    """Return the gradient of each trainable parameter, zeros if it has none."""
    parameters = (
        p for network in networks for p in network.parameters() if p.requires_grad
    )
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def plain(settings: Any) -> Any:
    """Return settings as dicts, lists, numbers, booleans and None; other values as
    strings."""
    if isinstance(settings, np.generic):
        settings = settings.item()
    elif isinstance(settings, DictConfig | ListConfig):
        settings = OmegaConf.to_container(settings, resolve=True)
    elif isinstance(settings, tuple) and hasattr(settings, "_asdict"):
        settings = settings._asdict()
    elif dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        settings = {
            f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)
        }
    elif isinstance(settings, argparse.Namespace | types.SimpleNamespace):
        settings = vars(settings)
    elif isinstance(settings, Set):
        settings = sorted(settings, key=repr)
    if isinstance(settings, Mapping):
        return {as_text(key): plain(value) for key, value in settings.items()}
    if isinstance(settings, list | tuple | range):
        return list(map(plain, settings))
    is_number = type(settings) is float or (
        type(settings) is int and abs(settings) < 1 << 64
    )
    is_plain = is_number or settings is None or isinstance(settings, bool)
    return settings if is_plain else as_text(settings)


def config_yaml(settings: object, every_steps: int) -> tuple[str, Any]:
    """Return config.yaml for settings, with the keys that readers of records need, and
    the seed.

    Settings that are no mapping, or too large or deep for those readers, raise
    InputError.
    """
    try:
        values = plain({} if settings is None else settings)
        if not isinstance(values, Mapping):
            raise ValueError(
                f"{type(settings).__name__} instead of a mapping or a dataclass"
            )
        # train.py writes none
        own: dict[str, Any] = {"recorder": {"version": __version__}}
        own["fingerprint"] = {"every_steps": every_steps}
        if type(values.get("seed")) is int and "seeds" not in values:
            own["seeds"] = dict.fromkeys(STREAMS, values["seed"])
        text: str = yaml.safe_dump({**values, **own}, sort_keys=False)
        untrusted.parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"settings: expected values that config.yaml can hold, got {error}; leave"
            " data out"
        ) from None
    return text, values.get("seed")


@contextmanager
def opened(
    folder: Path, resume_from: int | None
) -> Iterator[tuple[dict[str, Any], Writer]]:
    """Lock a run folder, new or cut back to a step; yield its summary and its
    writer."""
    if resume_from is None:
        if existing := [name for name in record.FILES if (folder / name).exists()]:
            raise InputError(
                f"folder: expected a new one, got {folder} with {existing[0]}; name"
                " another, or give the last step of the checkpoint: Recorder(...,"
                " resume_from=STEP)"
            )
        folder.mkdir(parents=True, exist_ok=True)
    elif "recorder" not in untrusted.read_dict(record.require_run(folder)):
        raise InputError(
            f"folder: expected the record of a Recorder, got {folder}, a run of"
            " train.py; resume it with scripts/resume.py"
        )
    with record.lock(folder):
        if resume_from is None:
            before = {}
            writer = Writer(folder)
        else:
            untrusted.reject_external_links(folder)
            before = record.read_summary(folder)
            last = max(
                (int(row["step"]) for row in record.read_metrics(folder)), default=0
            )
            if not 0 <= resume_from <= last:
                raise InputError(
                    f"resume_from: expected from 0 to {last}, the last step of"
                    f" {folder}, got {resume_from}; call flush() with each checkpoint,"
                    " or name an earlier one"
                )
            writer = Writer(folder, lambda row: int(row["step"]) <= resume_from)
        with closing(writer):
            yield before, writer
