"""The configuration of a run, resolved and checked.

Checked twice: by `train.py` before anything is written, and by the training process, whose only
input is the file. Sections of a class that users choose (a data set's, a model's, an optimizer's
arguments) are open; the class checks them itself.
"""

import difflib
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seedbed.config import loggers, missing, targets, trust
from seedbed.config.rules import (
    OPEN_SECTIONS,
    RULES,
    TASKS,
    promises_bits,
    require_sections,
)
from seedbed.errors import InputError


def resolve(composed: DictConfig) -> DictConfig:
    """Return the configuration with its seed drawn if it is null, and nothing left to look up."""
    config = OmegaConf.create(OmegaConf.to_container(composed))
    assert isinstance(config, DictConfig)
    try:
        if config.get("seed", 0) is None:
            config.seed = secrets.randbits(63)
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "configuration"
        reason = str(error).splitlines()[0]
        if lacks := re.match(r"Interpolation key '(.+)' not found", reason):
            other = ", or choose a model that fits the data set" if key.startswith("model.") else ""
            raise InputError(
                f"{lacks[1]}: expected a value, since {key} refers to it, got none; add it{other}"
            ) from None
        raise InputError(f"{key}: expected a value, got {reason}; set it") from None
    return OmegaConf.create(plain)  # type: ignore[return-value]


def check(config: DictConfig) -> None:
    """Raise InputError for the first thing in a resolved configuration that cannot be."""
    require_sections(config)
    missing.require(config)
    for key, rule in RULES.items():
        value = OmegaConf.select(config, key, default=missing.NOTHING)
        if value is not missing.NOTHING and not rule.holds(value):
            raise InputError(f"{key}: expected {rule.expected}, got {_show(value)}; {rule.advice}")
    _require_by_name(config)
    _check_known(OmegaConf.to_container(config))  # type: ignore[arg-type]
    trust.require_targets(config)
    targets.require_defined(config)
    _check_combination(config)
    if config.get("logger"):
        loggers.require_installed(config.logger)


def _require_by_name(config: DictConfig) -> None:
    """Raise InputError for callbacks or metrics that are not classes by name."""
    for key in ("callbacks", "metrics"):
        section = config.get(key)
        if section is not None and not isinstance(section, DictConfig):
            raise InputError(
                f"{key}: expected classes by name, got {_show(section)}; add one by "
                f"+{key}.NAME._target_=CLASS"
            )
        for name, spec in dict[Any, Any](section or {}).items():
            if not isinstance(spec, DictConfig) or "_target_" not in spec:
                raise InputError(
                    f"{key}.{name}: expected a mapping with a _target_, got {_show(spec)}; see "
                    "docs/methods.md"
                )


def _show(value: Any) -> str:
    return "null" if value is None else repr(value) if isinstance(value, str) else str(value)


def nearest(name: str, names: Sequence[str]) -> str:
    """Return `did you mean X`-style advice: the known name most like an unknown one.

    Of dotted names, those in the same section come first, and are compared by their last parts. A
    name without a section is a misspelt section rather than a key of one; what is only a little
    like the last part of a key in some section is not named.
    """
    section, _, last = name.rpartition(".")
    sections = dict.fromkeys(known.partition(".")[0] for known in names)
    is_last_part = any(known.endswith(f".{name}") for known in names)
    alike = [] if section else difflib.get_close_matches(name, sections, n=1, cutoff=0.75)
    if alike and not is_last_part:
        return f"did you mean {alike[0]}"
    beside = {
        known.rpartition(".")[2]: known
        for known in reversed(names)
        if not section or known.rpartition(".")[0] == section
    }
    few = 0.5 if len(last) < 4 else 0.6  # one letter of two
    close = difflib.get_close_matches(last, beside, n=1, cutoff=few if section else 0.8)
    elsewhere = [known for known in names if known not in beside.values() and known != section]
    found = [beside[part] for part in close] or difflib.get_close_matches(name, elsewhere, n=1)
    return f"did you mean {found[0]}" if found else "see `python train.py --cfg job`"


def advice_on(key: str, known: Sequence[str]) -> str:
    """Return what to do about an unknown key of a configuration; see `nearest`."""
    advice = nearest(key, known)
    if "." in key or advice.startswith("did you mean"):
        return advice
    return f"{advice}; an argument of a class goes into its section, such as +model.{key}=VALUE"


def _check_known(tree: Mapping[str, Any], prefix: str = "") -> None:
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in OPEN_SECTIONS or key in RULES or (key == "schedule" and "_target_" in value):
            continue
        if isinstance(value, Mapping) and any(rule.startswith(f"{key}.") for rule in RULES):
            _check_known(value, f"{key}.")
            continue
        raise InputError(
            f"{key}: expected a known key, got a new one; {advice_on(key, list(RULES))}"
        )


def _check_combination(config: DictConfig) -> None:
    accepts = config.model.get("accepts")
    kind = config.data.get("kind")
    if accepts is not None and kind is not None and kind not in accepts:
        raise InputError(
            f"model: expected a model for data of kind {kind} (data={config.data.name}), got "
            f"{config.model.name}, which takes {' or '.join(accepts)}; choose another: each "
            "configs/model/*.yaml says what it accepts"
        )
    task = config.data.get("task")
    if task is not None and "_target_" not in task and task.get("name") not in TASKS:
        raise InputError(
            f"data.task.name: expected one of {', '.join(TASKS)}, or a task with a _target_, got "
            f"{_show(task.get('name'))}; see docs/extending.md"
        )
    on_nondeterministic = config.determinism.on_nondeterministic
    check_shards(config.trainer.shards, config.trainer.processes, config.data.batch_size)
    if promises_bits(on_nondeterministic) and config.fingerprint.every_steps == 0:
        raise InputError(
            "fingerprint.every_steps: expected an integer >= 1 where bits are promised, got 0; "
            "try fingerprint.every_steps=100 or determinism=seeded"
        )


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
