"""Errors of Hydra as one line each."""

import difflib
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from seedbed import project
from seedbed.config import launchers, missing
from seedbed.config.check import advice_on
from seedbed.config.rules import OPEN_SECTIONS, RULES
from seedbed.errors import InputError
from seedbed.names import flatten

COMPOSITION_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)
# Groups that people add options to.
_ONES_OWN = ("data", "experiment", "method", "model", "optimizer", "schedule")
# Where keys that no file names may be added: they are arguments of a class that the user chose.
_TAKE_ARGUMENTS = tuple(f"{section}." for section in OPEN_SECTIONS)


def explain(error: BaseException) -> InputError:
    """Turn an exception from composing the configuration into an InputError."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return _syntax(str(error.override or ""))
    for pattern, describe in _REASONS:
        match = re.search(pattern, text)
        if match:
            return describe(match.group(1), text)
    if isinstance(error, YAMLError):
        return InputError(f"{_yaml_place(error)}: expected YAML, got {_one_line(text)}; mend it")
    cause = error.__cause__ or error
    key = getattr(cause, "full_key", None) or "overrides"
    got = next(iter(text.removeprefix("Error merging override ").splitlines()), repr(error))
    reason = next(iter(str(cause).splitlines()), "")
    return InputError(
        f"{key}: expected a configuration that Hydra can compose, got {got[:200]}"
        + (f" ({reason[:200]})" if cause is not error else "")
        + "; correct it"
    )


def is_of_hydra(error: BaseException) -> bool:
    """Return whether an exception was raised by code of Hydra's, and not by a job of a sweep."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    # Hydra raises a job's own failure once more in `return_value`.
    code = frames[-1].f_code if frames else None
    home = str(Path(hydra.__file__).parent)
    return code is not None and code.co_filename.startswith(home) and code.co_name != "return_value"


def _syntax(override: str) -> InputError:
    if "=" not in override:
        return InputError(
            f"overrides: expected Hydra's key=value syntax, got {override} without =; "
            "write key=value without spaces, such as seed=0"
        )
    return InputError(
        f"overrides: expected Hydra's key=value syntax, got {override}; "
        "quote values with special characters: 'key=\"a,b\"'"
    )


def _unknown_key(key: str, text: str) -> InputError:
    if "No match in the defaults list" in text:
        return _unknown_group(key, text)
    if key in ("callbacks", "metrics"):
        return InputError(
            f"{key}: expected an entry to be added, got a mapping of new ones; write "
            f"+{key}.NAME._target_=CLASS"
        )
    known = known_keys()
    advice = [] if key in known else [advice_on(key, known)]
    if key.startswith(_TAKE_ARGUMENTS):
        file = f"its YAML file in configs/{key.partition('.')[0]}/"
        found = re.findall(r"use (\+\S.*)", text)
        advice += [f"{added} adds it (for all runs: a line in {file})" for added in found]
    got = "one that this configuration lacks" if key in known else "a new one"
    return InputError(
        f"{key}: expected a known key, got {got}; {', or '.join(advice) or 'leave its section in'}"
    )


def _is_group(name: str) -> bool:
    """Return whether `configs/NAME/` has options; `configs/hydra/` has groups alone."""
    return any((project.configs() / name).glob("*.yaml"))


def _unknown_group(name: str, _text: str) -> InputError:
    groups = sorted(filter(_is_group, (path.name for path in project.configs().iterdir())))
    close = difflib.get_close_matches(name, groups, n=1, cutoff=0.5)
    known = f"did you mean {close[0]}" if close else f"groups are {', '.join(groups)}"
    return InputError(f"{name}: expected a known config group, got a new one; {known}")


def _unknown_option(path: str, text: str) -> InputError:
    group, _, option = path.rpartition("/")
    options = sorted(file.stem for file in (project.configs() / group).glob("*.yaml"))
    close = difflib.get_close_matches(option, options, n=1, cutoff=0.5)
    advice = f"did you mean {group}={close[0]}" if close else f"see configs/{group}/"
    if group in _ONES_OWN:
        advice += f", or add configs/{group}/{option}.yaml"
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


def _missing_key(key: str, text: str) -> InputError:
    """Hydra asks for one key, to name the run folder: of a section that lacks several, name all."""
    if key in RULES and HydraConfig.initialized():
        try:
            missing.require(_composed_again(), key.partition(".")[0])
        except InputError as error:
            return error
        except COMPOSITION_ERRORS:
            pass  # a sweep, for one, is no single configuration
    asks = re.search(r"full_key: (\S+)", text)
    return InputError(
        f"{key}: expected a value, since {asks.group(1) if asks else 'another key'} refers to it, "
        "got none; set it, or do not delete it"
    )


def _composed_again() -> DictConfig:
    """Return what Hydra composes of the command line, without its own keys."""
    folder = str(project.configs().resolve())
    with hydra.initialize_config_dir(folder, version_base="1.3"):
        return hydra.compose("config", overrides=list(HydraConfig.get().overrides.task))


def _existing_key(key: str, text: str) -> InputError:
    instead = re.search(r"prefix: '(.+?)'", text)
    return InputError(
        f"{key}: expected a new key after +, got one that is there; "
        f"write {instead.group(1) if instead else key} without +"
    )


def _other_value(key: str, text: str) -> InputError:
    return InputError(
        f"{key}: expected the value that it has, got another to delete "
        f"({_one_line(text.rpartition('. ')[2])}); write ~{key}"
    )


def _second_choice(group: str, _text: str) -> InputError:
    return InputError(
        f"{group}: expected one option of the group, got two; write {group}=OPTION without +"
    )


def _several_values(override: str, _text: str) -> InputError:
    key, _, values = override.partition("=")
    return InputError(
        f"{key}: expected one value, got {values}; add --multirun for a run of each, or write "
        f"'{key}=[{values}]' for a list"
    )


def _no_folder(path: str, _text: str) -> InputError:
    return InputError(f"--config-dir: expected a folder, got {path}, where none is; check the path")


_REASONS: tuple[tuple[str, Callable[[str, str], InputError]], ...] = (
    (r"Could not override '([^']+)'", _unknown_key),
    (r"Key '([^']+)' is not in struct", _unknown_key),
    (r"Could not delete from config\. The value of '([^']+)'", _other_value),
    (r"Could not delete from config\. '([^']+)'", _unknown_key),
    (r"Could not delete '([^']+)'\. No match in the defaults list", _unknown_group),
    (r"Could not append to config\. An item is already at '([^']+)'", _existing_key),
    (r"Interpolation key '([^']+)' not found", _missing_key),
    (r"^(\S+) appears more than once in the final defaults list", _second_choice),
    (r"Ambiguous value for argument '([^']+)'", _several_values),
    (r"Additional config directory '([^']+)' not found", _no_folder),
    (r"config group '([^']+)' does not exist", _unknown_group),
    (r"Could not find '([^']+)'", _unknown_option),
    (r"Could not load '([^']+)'", _unknown_option),
    (r"Cannot find primary config '([^']+)'", _no_config),
)


def refuse(overrides: Iterable[Override]) -> None:
    """Raise InputError for `=1`, `model=null` and their like: Hydra fails without a message."""
    for one in overrides:
        key, line = one.key_or_group, one.input_line
        if not key:
            raise InputError(
                f"overrides: expected Hydra's key=value syntax, got {line}; write a key "
                "before the ="
            )
        chosen = one.is_delete() or one.is_sweep_override() or isinstance(one.value(), str | list)
        is_group = _is_group(key)
        if not chosen and (is_group or key.partition("/")[0] == "hydra"):
            where = f"configs/{key}/" if is_group else "`python train.py --hydra-help`"
            raise InputError(f"{key}: expected an option of the group, got {line}; see {where}")


def known_keys() -> list[str]:
    """Return the groups and the keys of RULES and of every group's files, for naming the nearest.

    An experiment's file has keys of the other groups.
    """
    groups = filter(_is_group, (path.name for path in project.configs().iterdir()))
    keys = {*RULES, *groups}
    for path in project.configs().glob("*/*.yaml"):
        try:
            names = _keys(path) if path.parent.name != "experiment" else ()
        except COMPOSITION_ERRORS:
            continue
        keys.update(f"{path.parent.name}.{name}" for name in names)
    return sorted(keys)


def _keys(path: Path) -> set[str]:
    """Return the keys of a file and of the sections in it, but for `_target_`."""
    tree = OmegaConf.to_container(OmegaConf.load(path))
    leaves = (leaf.split(".") for leaf in flatten(tree if isinstance(tree, dict) else {}))
    return {
        ".".join(leaf[:count])
        for leaf in leaves
        for count in range(1, len(leaf) + 1)
        if leaf[count - 1] != "_target_"
    }


def _yaml_place(error: YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "a YAML file" if mark is None else f"{mark.name}, line {mark.line + 1}"


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]
