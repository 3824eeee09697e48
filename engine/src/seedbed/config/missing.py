"""Keys that a configuration lacks: what each must be, and which file they belong into."""

from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import project
from seedbed.config.rules import OPTIONAL_KEYS, RULES, SUPERVISED
from seedbed.errors import InputError

NOTHING: Any = object()
_TASK = "a task for method=supervised, such as {name: classification}"


def require(config: DictConfig, only: str = "") -> None:
    """Raise InputError for the keys that are missing in one section, all at once.

    Args:
        only: the section to look at; empty for all.
    """
    missing = {key: what for key, what in _missing(config).items() if _is_in(only, key)}
    if not missing:
        return
    first = next(iter(missing))
    section = first.partition(".")[0] if "." in first else ""
    keys = [key for key in missing if section and _is_in(section, key)] or [first]
    if len(keys) == 1:
        advice = _advice(section, first, "it")
        raise InputError(f"{first}: expected {missing[first]}, got nothing; {advice}")
    named = ", ".join(f"{key.removeprefix(f'{section}.')} ({missing[key]})" for key in keys)
    advice = _advice(section, section, "them")
    raise InputError(f"{section}: expected the keys {named}, got none of these; {advice}")


def _missing(config: DictConfig) -> Mapping[str, str]:
    """Return the keys that a configuration lacks, and what each is expected to be."""
    unresolved: Any = {"default": NOTHING, "throw_on_resolution_failure": False}
    missing = {
        key: rule.expected
        for key, rule in RULES.items()
        if OmegaConf.select(config, key, **unresolved) is NOTHING and not _is_optional(config, key)
    }
    method = (config.get("method") or {}).get("_target_", SUPERVISED)
    if method == SUPERVISED and (config.get("data") or {}).get("task") is None:
        missing["data.task"] = _TASK
    return missing


def _is_in(section: str, key: str) -> bool:
    return not section or f"{key}.".startswith(f"{section}.")


def _is_optional(config: DictConfig, key: str) -> bool:
    """Return whether a key may be missing; a schedule that is a class has no key of ours."""
    is_ones_own = key.startswith("schedule.") and "_target_" in (config.get("schedule") or {})
    return key in OPTIONAL_KEYS or is_ones_own


def _advice(section: str, key: str, them: str) -> str:
    """Return what to do about a missing key: the command line may have chosen its file."""
    choice, overrides = _chosen(section)
    for line in overrides:
        if line.startswith("~") and _is_in(line[1:].partition("=")[0], key):
            return f"do not delete {them} by {line}"
    file = project.configs() / section / f"{choice}.yaml"
    if choice and file.is_file():
        return f"add {them} to configs/{section}/{choice}.yaml"
    return f"add {them} to {f'the section {section}' if section else 'the configuration'}"


def _chosen(section: str) -> tuple[str | None, Sequence[str]]:
    """Return the option of a group and the overrides, where Hydra read a command line."""
    from hydra.core.hydra_config import HydraConfig  # slow, and only an error needs it

    if not HydraConfig.initialized():
        return None, ()
    hydra = HydraConfig.get()
    return hydra.runtime.choices.get(section), list(hydra.overrides.task)
