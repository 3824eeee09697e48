"""The configuration of a run, resolved and checked, and requests to resume or replay
the run."""

import secrets
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigKeyError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from seedbed.config.build import entries as entries
from seedbed.config.build import known_keys
from seedbed.config.build import targets_of as targets_of
from seedbed.config.habits import called_here
from seedbed.config.settings import Chosen, Data, Plateau, Schedule
from seedbed.config.settings import Settings as Settings
from seedbed.config.settings import promises_bits as promises_bits
from seedbed.config.trust import may_connect as may_connect
from seedbed.config.trust import require_trusted as require_trusted
from seedbed.errors import InputError
from seedbed.names import did_you_mean, flatten
from seedbed.record.text import show

# Sections that are named after their options by default: `~model` leaves no name.
_NAMED = ("data", "model", "method", "optimizer", "schedule")
_KINDS = {
    int: "an integer",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
}


def resolve(composed: DictConfig, seed: int | None = None) -> DictConfig:
    """Return the configuration resolved; a null seed becomes the given one, or is
    drawn."""
    config: Any = OmegaConf.create(OmegaConf.to_container(composed))
    for name, section in config.items_ex(resolve=False):
        is_given = OmegaConf.is_dict(section) or OmegaConf.is_interpolation(
            config, name
        )
        if expected_of(name) == "a mapping" and not is_given:
            raise InputError(f"{name}: expected a mapping, got {show(section)}")
    try:
        if config.get("seed", 0) is None:
            config.seed = secrets.randbits(63) if seed is None else seed
        # before sections that refer to one which is not there
        for name in _NAMED:
            if OmegaConf.select(config, f"{name}.name", default="") is None:
                raise InputError(
                    f"{name}: expected an option, got none; choose one ({name}=NAME)"
                )
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        require_no_circle(config)
        key = error.full_key or "configuration"
        reason = str(error).splitlines()[0]
        raise InputError(f"{key}: expected a value, got none: {reason}") from None
    return OmegaConf.create(plain)  # type: ignore[no-any-return]


def require_no_circle(composed: DictConfig) -> None:
    """Raise InputError if a value refers to itself, through others or alone."""
    from seedbed.config.interpolations import circle  # which imports this module

    if keys := circle(composed):
        raise InputError(
            f"{keys[0]}: expected a value, got references in a circle:"
            f" {' -> '.join(keys)}; give one of them a value"
        )


@dataclass(frozen=True)
class Request:
    """A request to the training process, to resume or replay a run."""

    # new values by configuration key
    settings: dict[str, Any] = field(default_factory=dict)
    allow_changed: bool = False  # resume despite changes that can alter bits
    record: str | None = None  # the run folder to replay, if any
    first_step: int = 0  # the step of the record's checkpoint from which it is replayed
    last_step: int | None = None
    # at the first row that differs from the record's tables
    stops_where_it_differs: bool = True
    # where a replay starts a new best
    new_best_steps: list[int] = field(default_factory=list)
    # the name of a child of the rehearsal (`run.rehearse`), if it is one
    rehearsal: str = ""

    def applied_to(self, recorded: DictConfig) -> DictConfig:
        settings = deepcopy(recorded)
        for key, value in self.settings.items():
            OmegaConf.update(settings, key, value, merge=False, force_add=True)
        return settings


def check(config: DictConfig) -> Settings:
    """Check a resolved configuration; return it as Settings, with values cast to their
    types.

    Raises InputError for a key that is unknown, missing, of the wrong type, out of
    range, or incompatible with another key.
    """
    if "recorder" in config:
        raise InputError(
            "recorder: expected a run of train.py, got the record of seedbed.Recorder,"
            " which only its own script can repeat; scripts/compare.py reads it"
        )
    settings = _typed(config)
    _require_rules(settings)
    _require_data(settings)
    _require_schedule(settings)
    if settings.determinism.name == "portable":
        _choose_cpu(settings)
    trainer = settings.trainer
    if trainer.in_process and trainer.processes > 1:
        raise InputError(
            "trainer.processes: expected 1 with trainer.in_process, got"
            f" {trainer.processes}"
        )
    check_shards(settings, trainer.processes)
    strict = promises_bits(settings.determinism.on_nondeterministic)
    if strict and not settings.fingerprint.every_steps:
        raise InputError(
            "fingerprint.every_steps: expected an integer >= 1 where bits are promised,"
            " got 0; try fingerprint.every_steps=100 or determinism=seeded"
        )
    return settings


def _typed(config: DictConfig) -> Settings:
    """Return a configuration as Settings; raise InputError for a key that is unknown,
    missing or of the wrong type."""
    merged: Any = OmegaConf.structured(Settings)
    name = "schedule"
    try:
        classes = _classes_of(config)
        # `seed` first: if it is invalid, so are its copies in `seeds`, but it is the
        # one to report.
        for name in sorted(map(str, config), key=lambda name: name != "seed"):
            if name in classes:
                merged[name] = OmegaConf.structured(classes[name])
                if issubclass(classes[name], Data | Chosen):
                    OmegaConf.set_struct(merged[name], False)
            merged.merge_with({name: config[name]})
            if name == "data":
                _require_no_typo(config)
        settings: Settings = OmegaConf.to_object(merged)  # type: ignore[assignment]
    except OmegaConfBaseException as error:
        raise _explained(error, error.full_key or name, config) from None
    plain: Any = OmegaConf.to_container(merged)
    for name in map(str, config):
        # defaults are not arguments
        if isinstance(getattr(settings, name), Data | Chosen):
            plain[name] = {key: plain[name][key] for key in config[name]}
        settings.plain[name] = plain[name]
    return settings


def _classes_of(config: DictConfig) -> dict[str, Any]:
    """Return the class of each section; that of the schedule depends on its keys."""
    classes: dict[str, Any] = {
        section.name: section.type
        for section in fields(Settings)
        if is_dataclass(section.type)
    }
    is_own = OmegaConf.select(config, "schedule._target_")
    falls = OmegaConf.select(config, "schedule.patience") is not None
    classes["schedule"] = Chosen if is_own else Plateau if falls else Schedule
    return classes


def _require_no_typo(config: DictConfig) -> None:
    """Raise InputError for a key of `data` that resembles a known one; others are the
    data set's own."""
    for key in config["data"]:
        value = config["data"][key]
        known = [
            known_key
            for known_key in Data.__dataclass_fields__
            if _may_be(value, f"data.{known_key}")
        ]
        near = did_you_mean(key, known)
        if near and not _is_passed_on(key, config):
            raise InputError(
                f"data.{key}: expected a known key, got a new one{near}, or"
                f" pass it to a class, as in {key}: ${{data.{key}}}"
            )


def _explained(
    error: OmegaConfBaseException, key: str, config: DictConfig
) -> InputError:
    """Return a one-line error for a key that OmegaConf refuses."""
    reason = str(error).splitlines()[0]
    if isinstance(error, ConfigKeyError):
        # A file may have this typo.
        near = called_here(key) or did_you_mean(key, known_keys() - {key})
        near = (
            "; begin its file with # @package _global_" if key == "experiment" else near
        )
        return InputError(f"{key}: expected a known key, got a new one{near}")
    if isinstance(error, MissingMandatoryValue):
        return InputError(f"{key}: expected a value, got nothing; add it")
    expected = expected_of(key)
    got = show(OmegaConf.select(config, key))
    if not expected:
        expected = "another type of value"
        got = reason
    return InputError(f"{key}: expected {expected}, got {got[:80] or 'nothing'}")


def expected_of(key: str) -> str:
    """Return in words what type of value a key has; empty if it is free."""
    hint: Any = Settings
    for name in key.split("."):
        values = get_args(hint)[1:] if get_origin(hint) is dict else (None,)
        hint = get_type_hints(hint).get(name) if is_dataclass(hint) else values[0]
        hint = (
            next(iter(get_args(hint)), hint)
            if get_origin(hint) in (Union, UnionType)
            else hint
        )
    kind = get_origin(hint) or hint
    is_mapping = kind is dict or is_dataclass(kind)
    return "a mapping" if is_mapping else _KINDS.get(kind, "")


def _may_be(value: Any, key: str) -> bool:
    """Return whether a value is of the type that a key expects: a list is no misspelt
    text."""
    plain = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
    in_words = "a mapping" if isinstance(plain, dict) else _KINDS.get(type(plain))
    return value is None or expected_of(key) in ("", in_words)


def _is_passed_on(key: str, config: DictConfig) -> bool:
    """Return whether a class gets an argument of the name of a key of `data`, which is
    no typo."""
    paths = (f".{path}." for path in flatten(OmegaConf.to_container(config)))
    return any(
        f".{key}." in path for path in paths if not path.startswith(f".data.{key}.")
    )


def _require_rules(section: Any, key: str = "") -> None:
    """Raise InputError for the first value that its annotation does not allow."""
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        path = f"{key}.{name}".lstrip(".")
        value = getattr(section, name)
        if is_dataclass(value):
            _require_rules(value, path)
        alternatives = (hint, *get_args(hint))  # Annotated[...] | None
        rules = [
            rule
            for alternative in alternatives
            for rule in getattr(alternative, "__metadata__", ())
        ]
        for rule in rules if value is not None else ():
            if not rule.allows(value):
                raise InputError(f"{path}: expected {rule.expected}, got {value}")


def _require_data(settings: Settings) -> None:
    """Raise InputError if a data set or the task of the method is missing."""
    for split in ("train", "validation"):
        if settings.data.spec(split) is None:
            raise InputError(f"data.{split}: expected a mapping, got nothing; add it")
    if (
        settings.method._target_ == "seedbed.methods.Supervised"
        and settings.data.task is None
    ):
        raise InputError(
            "data.task: expected a task for method=supervised, got nothing; add it,"
            " such as {name: classification}"
        )


def _require_schedule(settings: Settings) -> None:
    """Raise InputError for a schedule with two warm-ups, or without the validations
    that it follows."""
    schedule = settings.schedule
    if not isinstance(schedule, Chosen):
        steps = schedule.warmup_steps
        epochs = schedule.warmup_epochs
        if steps is not None and epochs is not None:
            raise InputError(
                "schedule.warmup_epochs: expected null beside"
                f" schedule.warmup_steps={steps}, got {epochs}; set one of them to null"
            )
    trainer = settings.trainer
    validates = trainer.validate_every_epochs or trainer.validate_every_steps
    if isinstance(schedule, Plateau) and not validates:
        raise InputError(
            "trainer.validate_every_epochs: expected an integer >= 1 for"
            " schedule=plateau, which follows validations, got 0"
        )


def _choose_cpu(settings: Settings) -> None:
    """Let device=auto be the CPU; raise InputError for another device."""
    device = settings.trainer.device
    if device not in ("auto", "cpu"):
        raise InputError(
            "trainer.device: expected cpu under determinism=portable, as kernels"
            f" differ between GPUs, got {device}; choose determinism=strict for"
            " a GPU"
        )
    if device == "auto":
        settings.plain["trainer"]["device"] = settings.trainer.device = "cpu"


def check_shards(settings: Settings, processes: int) -> None:
    """Raise InputError unless shards divide a batch, and processes the slices of a
    step."""
    shards = settings.trainer.shards
    accumulate = settings.trainer.accumulate
    batch_size = settings.data.batch_size
    asked = {"processes": processes, "shards": shards, "accumulate": accumulate}
    for key, value in asked.items():
        if processes > 1 and value.bit_count() != 1:
            raise InputError(
                f"trainer.{key}: expected a power of two with several processes, got"
                f" {value}"
            )
    if shards * accumulate < processes:
        raise InputError(
            f"trainer.shards: expected >= {processes}, one per process, got {shards}"
        )
    if batch_size % shards:
        raise InputError(
            f"trainer.shards: expected a divisor of data.batch_size ({batch_size}), got"
            f" {shards}"
        )
