"""Composing a configuration by Hydra, whose errors become a line each."""

import re
from collections.abc import Sequence
from pathlib import Path

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from seedbed import project
from seedbed.config.check import check, resolve
from seedbed.config.trust import known_keys
from seedbed.errors import InputError
from seedbed.names import did_you_mean

# Hydra 1.3 has to be told to behave as itself, 1.4 warns of being told so, and 1.5 does not know
# the parameter any more.
VERSION: dict[str, str] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
ERRORS = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)


def compose(*overrides: str, folder: Path | None = None) -> DictConfig:
    """Return what train.py composes of overrides, of which later ones win; nothing is resolved.

    Args:
        folder: where config.yaml and the groups are; by default configs/ of this checkout.
    """
    folder = (folder or project.configs()).resolve()
    try:
        with hydra.initialize_config_dir(str(folder), **VERSION):
            return hydra.compose("config", overrides=list(overrides))
    except ERRORS as error:
        raise explain(error) from error


def configuration(*overrides: str, folder: Path | None = None) -> DictConfig:
    """Return the configuration of a run, resolved and checked; see `compose`."""
    resolved = resolve(compose(*overrides, folder=folder))
    check(resolved)
    return resolved


def parse(overrides: Sequence[str]) -> list[Override]:
    """Read `key=value` overrides in Hydra's grammar, one value for one key."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise explain(error) from None
    for one in parsed:
        if one.is_sweep_override() or one.is_delete():
            raise InputError(f"{one.input_line}: expected key=value, one value for one key")
    return parsed


def explain(error: BaseException) -> InputError:
    """Return in one line why a configuration cannot be composed, with the nearest key."""
    if isinstance(error, OverrideParseException):
        return InputError(
            f"overrides: expected Hydra's key=value syntax, got {error.override}; quote a value "
            "with special characters: \"key='a=b'\""
        )
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return InputError(f"{mark.name}, line {mark.line + 1}: expected YAML, got {error.problem}")
    text = re.sub(r"^In '[^']*': ", "", str(error))
    reason = " ".join(re.split(r"\n(?:Config search path| +full_key)", text)[0].split())[:300]
    quoted = re.search("'([^'=]+)", text)
    key = quoted[1] if quoted else "overrides"
    options = re.findall(r"^\t(\S+)$", text, re.MULTILINE)  # of a group, with its name: model/cnn
    near = did_you_mean(key.rpartition("/")[2], {*known_keys(), *options})
    return InputError(f"{key}: expected what Hydra can compose, got an error: {reason}{near}")
