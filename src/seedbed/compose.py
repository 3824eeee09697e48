"""Hydra's ways of saying no, as one line each."""

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from seedbed import launchers
from seedbed.config import RULES, nearest
from seedbed.errors import InputError

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)


def explain(error: BaseException) -> InputError:
    """Turn an exception from composing the configuration into an InputError."""
    text = str(error)
    for pattern, describe in (
        (r"Could not override '([^']+)'", _unknown_key),
        (r"Key '([^']+)' is not in struct", _unknown_key),
        (r"Could not delete from config\. '([^']+)'", _unknown_key),
        (r"config group '([^']+)' does not exist", _unknown_group),
        (r"Could not find '([^']+)'", _unknown_option),
        (r"Could not load '([^']+)'", _unknown_option),
        (r"Cannot find primary config '([^']+)'", _no_config),
    ):
        match = re.search(pattern, text)
        if match:
            return describe(match.group(1), text)
    if isinstance(error, YAMLError):
        return InputError(f"{_yaml_place(error)}: expected YAML, got {_one_line(text)}; mend it")
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None) or "overrides"
    return InputError(
        f"{key}: expected Hydra's key=value syntax, got {_one_line(text)}; "
        "quote values with special characters: 'key=\"a,b\"'"
    )


def _unknown_key(key: str, text: str) -> InputError:
    if "No match in the defaults list" in text:
        return _unknown_group(key, text)
    return InputError(f"{key}: expected a known key, got a new one; {nearest(key, known_keys())}")


def _unknown_group(name: str, _text: str) -> InputError:
    groups = sorted(path.name for path in _config_folder().iterdir() if path.is_dir())
    close = difflib.get_close_matches(name, groups, n=1, cutoff=0.5)
    known = f"did you mean {close[0]}" if close else f"groups are {', '.join(groups)}"
    return InputError(f"{name}: expected a known config group, got a new one; {known}")


def _unknown_option(path: str, text: str) -> InputError:
    group, _, option = path.rpartition("/")
    options = sorted(file.stem for file in (_config_folder() / group).glob("*.yaml"))
    close = difflib.get_close_matches(option, options, n=1, cutoff=0.3)
    advice = f"did you mean {group}={close[0]}" if close else f"see configs/{group}/"
    if not options:  # a group of Hydra's own
        options = _installed(text)
        close = difflib.get_close_matches(option, [*options, *launchers.PLUGINS], n=1, cutoff=0.5)
        advice = f"did you mean {group}={close[0]}" if close else "choose one of these"
        if option in launchers.PLUGINS:
            advice = f"install it: {launchers.INSTALL}"
    return InputError(
        f"{group or 'config'}: expected one of {', '.join(options) or 'what is installed'}, "
        f"got {option}; {advice}"
    )


def _installed(text: str) -> list[str]:
    """Return the options that Hydra lists in its message."""
    return sorted(re.findall(r"^\t(\S+)$", text, re.MULTILINE))


def _no_config(name: str, _text: str) -> InputError:
    return InputError(f"config: expected a file configs/{name}.yaml, got none; check --config-name")


def refuse_groups_without_option(overrides: Iterable[Override]) -> None:
    """Raise InputError for `model=null` and its like, on which Hydra fails without a message."""
    for one in overrides:
        chosen = one.is_delete() or one.is_sweep_override() or isinstance(one.value(), str | list)
        if not chosen and (_config_folder() / one.key_or_group).is_dir():
            raise InputError(
                f"{one.key_or_group}: expected an option of the group, got {one.input_line}; see "
                f"configs/{one.key_or_group}/"
            )


def known_keys() -> list[str]:
    """Return the keys of RULES and of every YAML file in configs/, for naming the nearest."""
    keys = set(RULES)
    for path in _config_folder().glob("*/*.yaml"):
        try:
            names = list(OmegaConf.load(path))
        except COMPOSITION_ERRORS:
            continue
        keys.update(f"{path.parent.name}.{name}" for name in names)
    return sorted(keys)


def _config_folder() -> Path:
    return Path(__file__).resolve().parents[2] / "configs"


def _yaml_place(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "a YAML file" if mark is None else f"{mark.name}, line {mark.line + 1}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
