"""Errors of Hydra as one line each: the key, the first line of its message, the nearest key."""

import re
from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError, YAMLError

from seedbed import project
from seedbed.config.targets import project_files
from seedbed.errors import InputError
from seedbed.names import did_you_mean, flatten

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)
_KEY = re.compile(r"Could not (?:override|delete)(?: from config\.)? '([^']+)'|Key '([^']+)' is ")
_OPTION = re.compile(r"Could not (?:find|load) '(.+)/([^/']+)'")
# Of classes that users choose.
_OPEN = ("data.", "model.", "method.", "optimizer.", "callbacks.", "metrics.", "logger.")


def explain(error: BaseException) -> InputError:
    """Turn an exception from composing the configuration into an InputError."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return InputError(
            f"overrides: expected Hydra's key=value syntax, got {error.override}; quote special "
            "characters: 'key=\"a,b\"'"
        )
    if several := re.search("Ambiguous value for argument '(.+?)=(.+)'", text):
        key, values = several.groups()
        return InputError(
            f"{key}: expected one value, got {values}; add --multirun for a run of each, or write "
            f"'{key}=[{values}]' for a list"
        )
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return InputError(f"{mark.name}, line {mark.line + 1}: expected YAML, got {error.problem}")
    if option := _OPTION.search(text):
        group, name = option.groups()
        options = sorted(path.stem for path in (project.configs() / group).glob("*.yaml"))
        options = options or sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE))
        near = did_you_mean(name, options)
        if not near and group.startswith("hydra"):
            near = "; other launchers are packages of their own"
        near = near or f"; or add configs/{group}/{name}.yaml"
        return InputError(f"{group}: expected one of {', '.join(options)}, got {name}{near}")
    if found := _KEY.search(text):
        key = str(found[1] or found[2])
        near = did_you_mean(key, known_keys())
        if key.startswith(_OPEN) and (added := re.search(r"use (\+\S.*)", text)):
            near = f"{near or ';'}{', or' if near else ''} {added[1]} adds it"
        return InputError(f"{key}: expected a known key, got a new one{near}")
    cause = error.__cause__ or error
    reason = " ".join(str(cause).partition("\n    full_key")[0].split())[:200]
    quoted = re.search("'([^']+)'", text)
    key = getattr(cause, "full_key", None) or (quoted[1] if quoted else "overrides")
    return InputError(f"{key}: expected a configuration that Hydra can compose, got: {reason}")


def parse(overrides: Sequence[str]) -> list[Override]:
    """Read `key=value` overrides in Hydra's grammar, one value for one key.

    Raises:
        InputError: one of them is something else.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise explain(error) from None
    for one in parsed:
        if one.is_sweep_override() or one.is_delete():
            raise InputError(f"{one.input_line}: expected key=value; give one value for one key")
    return parsed


def known_keys() -> list[str]:
    """Return the groups of configs/ and the keys of its files, for naming the nearest."""
    found = set()
    for group, keys in project_files():
        for leaf in flatten({group: keys} if group else keys):
            parts = leaf.split(".")
            found |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    return sorted(found)
