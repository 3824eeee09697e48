"""The configuration of a run, resolved and checked.

Checked twice: by `train.py` before anything is written, and by the training process, whose only
input is the file.
"""

import re
import secrets
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from seedbed.config import hydra_errors, loggers
from seedbed.config.settings import (
    SECTIONS,
    SUPERVISED,
    Open,
    OwnSchedule,
    Schedule,
    Section,
    Settings,
    promises_bits,
)
from seedbed.errors import InputError
from seedbed.names import did_you_mean

# What a line of OmegaConf's says -> what it expected.
_EXPECTED = {
    "to Integer|type 'int'": "an integer",
    "to Float|type 'float'": "a number",
    "valid bool|type 'bool'": "true or false",
    "to string|type 'str'": "a text",
    "ListConfig": "a list",
    "": "a section with keys",
}
_BY_NAME = ("callbacks", "metrics", "logger")


def resolve(composed: DictConfig) -> DictConfig:
    """Return the configuration with its seed drawn if it is null, and nothing left to look up."""
    config = OmegaConf.create(OmegaConf.to_container(composed))
    assert isinstance(config, DictConfig)
    if config.get("seed", 0) is None:
        config.seed = secrets.randbits(63)
    try:
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key, reason = error.full_key or "configuration", str(error).splitlines()[0]
        if lacks := re.match(r"Interpolation key '(.+)' not found", reason):
            raise InputError(
                f"{lacks[1]}: expected a value, since {key} refers to it, got none; add it"
            ) from None
        raise InputError(f"{key}: expected a value, got {reason}; set it") from None
    return OmegaConf.create(plain)  # type: ignore[return-value]


def check(config: DictConfig) -> Settings:
    """Return a resolved configuration as an object, and bring its values into their types.

    Raises:
        InputError: it holds something that no run can have; the first of such.
    """
    require_replayable(config)
    settings = typed(config)
    for section in _BY_NAME:
        for name, spec in config.get(section, {}).items():
            if not isinstance(spec, Mapping | DictConfig) or "_target_" not in spec:
                raise InputError(
                    f"{section}.{name}: expected a class by its _target_, got {spec}; such as "
                    f"+{section}.{name}._target_=CLASS"
                )
    _require_that_parts_fit(config, settings)
    trainer, data = settings.trainer, settings.data
    check_shards(trainer.shards, trainer.processes, data.batch_size)
    if promises_bits(settings.determinism.on_nondeterministic) and (
        settings.fingerprint.every_steps == 0
    ):
        raise InputError(
            "fingerprint.every_steps: expected an integer >= 1 where bits are promised, got 0; "
            "try fingerprint.every_steps=100 or determinism=seeded"
        )
    loggers.require_installed(settings.logger)
    return settings


def typed(config: DictConfig) -> Settings:
    """Return a resolved configuration as an object; in `config`, values get their types as well.

    Raises:
        InputError: a key is unknown, missing, of another type or out of range.
    """
    kinds = dict(SECTIONS)
    schedule = config.get("schedule")
    kinds["schedule"] = OwnSchedule if schedule and "_target_" in schedule else Schedule
    # The seed first: all seeds follow it.
    names = sorted(map(str, config), key=lambda name: name != "seed")
    merged: Any = OmegaConf.structured(Settings)
    merged.schedule = OmegaConf.structured(kinds["schedule"])
    name = "configuration"
    try:
        for name in names:
            merged.merge_with({name: _declared(config[name], name, kinds.get(name))})
        settings: Settings = OmegaConf.to_object(merged)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise _explained(error, name, config) from None
    plain: Any = OmegaConf.to_container(merged)
    for name in names:
        is_open = name in kinds and issubclass(kinds[name], Open)
        value = plain[name]
        if is_open:
            value = {key: each for key, each in value.items() if key in config[name]}
        OmegaConf.update(config, name, value, merge=is_open)
    return settings


def _declared(value: Any, name: str, kind: type[Section] | None) -> Any:
    """Return of a section what the engine knows; of another value, all of it."""
    wants = kind is not None or name in _BY_NAME
    if wants and not isinstance(value, DictConfig):
        how = f"; write +{name}.{value}._target_=CLASS" if name in _BY_NAME else ""
        raise InputError(f"{name}: expected a section with keys, got {_shown(value)}{how}")
    if kind is None or not issubclass(kind, Open):
        return value
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    return {key: each for key, each in value.items() if key in known}


def _explained(error: OmegaConfBaseException, name: str, config: DictConfig) -> InputError:
    """Return in one line why OmegaConf does not take a section; of a list there it has no key."""
    key, text = error.full_key or name, str(error).splitlines()[0]
    if not error.full_key:
        lists = (k for k, value in config[name].items() if f"value: {value}" in text)
        key = next((f"{name}.{each}" for each in lists), name)
    if isinstance(error, ConfigKeyError):
        near = did_you_mean(key, hydra_errors.known_keys())
        return InputError(f"{key}: expected a known key, got a new one{near}")
    if isinstance(error, MissingMandatoryValue):
        return InputError(f"{key}: expected a value, got nothing; add it")
    value = OmegaConf.select(config, key, throw_on_missing=False)
    expected = next(words for pattern, words in _EXPECTED.items() if re.search(pattern, text))
    return InputError(f"{key}: expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, str) else str(value)


def _require_that_parts_fit(config: DictConfig, settings: Settings) -> None:
    accepts, kind = settings.model.accepts, config.data.get("kind")
    if accepts is not None and kind is not None and kind not in accepts:
        raise InputError(
            f"model: expected a model for data of kind {kind} (data={settings.data.name}), got "
            f"{settings.model.name}, which takes {' or '.join(accepts)}; choose another: each "
            "configs/model/*.yaml says what it accepts"
        )
    if settings.method._target_ == SUPERVISED and settings.data.task is None:
        raise InputError(
            "data.task: expected a task for method=supervised, got nothing; add it, such as "
            "{name: classification}"
        )
    for split in ("train", "validation"):
        if "_target_" not in getattr(settings.data, split):
            raise InputError(f"data.{split}._target_: expected the name of a class, got nothing")


def check_shards(shards: int, processes: int, batch_size: int) -> None:
    """Raise InputError unless a batch can be cut into shards, and processes can share them."""
    for key, value in (("processes", processes), ("shards", shards)):
        lower = 1 << (value.bit_length() - 1)
        if value != lower and processes > 1:
            raise InputError(
                f"trainer.{key}: expected a power of two with several processes, whose sums pair "
                f"up, got {value}; try trainer.{key}={lower}"
            )
    if shards < processes:
        raise InputError(
            f"trainer.shards: expected at least one for each of {processes} processes, got "
            f"{shards}; try trainer.shards={processes}"
        )
    if batch_size % shards:
        raise InputError(
            f"trainer.shards: expected a divisor of data.batch_size ({batch_size}), got {shards}; "
            f"try data.batch_size={max(batch_size - batch_size % shards, shards)}"
        )


def require_replayable(config: Mapping[str, Any]) -> None:
    """Raise InputError for the settings of a user's own training loop, which no command repeats."""
    if "recorder" in config:
        raise InputError(
            "recorder: expected a run of train.py, got the record of a training loop of one's own "
            "(seedbed.Recorder), which only its own script can repeat; scripts/compare.py reads it"
        )
