"""Composing configurations with Hydra, and train.py's command line, with one-line
errors."""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra import utils
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    OmegaConfBaseException,
)
from yaml import MarkedYAMLError, YAMLError

from seedbed import project
from seedbed.config import Settings, check, require_no_circle, resolve
from seedbed.config.build import entries, known_keys
from seedbed.config.habits import called_here, to_add
from seedbed.errors import InputError, one_line
from seedbed.names import did_you_mean

# Hydra 1.3 needs `version_base` to use its own defaults; 1.4 warns about it, 1.5 lacks
# it.
VERSION: dict[str, str] = (
    {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}
)
# Examples of what adds options to a group of Hydra's.
_PLUGINS = {
    "hydra/launcher": "hydra-submitit-launcher",
    "hydra/sweeper": "hydra-optuna-sweeper",
}
# 1.4 asks which callbacks a configuration may name: any, as it is the user's own.
_ANY = "UNSAFE_DISABLE_EXECUTION_CHECKS"
MAIN: dict[str, Any] = VERSION or {"execution_whitelist": getattr(utils, _ANY)}
_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, UnicodeDecodeError)
# Called when train.py ends, with whether an exception ended it; they return whether
# jobs failed.
at_end: list[Callable[[bool], bool]] = []


@contextmanager
def command_line() -> Iterator[None]:
    """Prepare the command line for Hydra's main function, called inside, and explain
    its errors.

    Exits with status 1 if a job of a sweep failed.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    # Hydra's parser needs the overrides together, but users may mix them with options.
    sys.argv[1:] = sorted(
        sys.argv[1:], key=lambda word: re.match("~|[^-].*=", word) is not None
    )
    try:
        try:
            yield
        finally:
            jobs_failed = _end_jobs(sys.exception())
    except Exception as error:
        explained = _explanation(error)
        if explained is None:
            raise
        raise explained from error
    if jobs_failed:
        sys.exit(1)


def _end_jobs(exception: BaseException | None) -> bool:
    """Do what is due when train.py ends, and return whether jobs failed."""
    if isinstance(exception, SystemExit) and exception.code == 2:  # it said why
        return False
    return any(work(exception is not None) for work in at_end)


def _explanation(error: Exception) -> InputError | None:
    """Return a one-line error for one that Hydra raised; None for a job's own."""
    if isinstance(error, _ERRORS):
        if "Recursive interpolation" in str(error):
            words = [word for word in sys.argv[1:] if re.match("~|[^-].*=", word)]
            require_no_circle(compose(*words))
        return explain(error)
    if isinstance(error, BrokenPipeError):
        return None
    if isinstance(error, OSError):  # from Hydra, which creates the folders
        return InputError(
            "hydra.run.dir: expected a folder that can be written, got"
            f" {error.strerror} for {error.filename}"
        )
    *_, (frame, _line) = traceback.walk_tb(error.__traceback__)
    module = str(frame.f_globals.get("__name__"))
    reason = one_line(error)
    if module.startswith("submitit."):  # a job was cancelled, or Slurm refused it
        advice = "change that option" if "sbatch" in reason else "repeat the command"
        return InputError(
            f"hydra.launcher: expected jobs that end, got {reason}; {advice}"
        )
    if "Config group override must be" in reason:
        return not_an_option(sys.argv[1:])
    if any(re.match(r"\+*hydra\.sweeper\.params", word) for word in sys.argv[1:]):
        return InputError(
            "hydra.sweeper.params: expected a section of a YAML file, got an override,"
            " which Hydra cannot merge; write its entries as overrides: seed=0,1"
        )
    # Hydra re-raises a job's own failure in `return_value`.
    if module.startswith("hydra.") and frame.f_code.co_name != "return_value":
        return InputError(f"overrides: expected valid options, got {reason}")
    return None


def compose(*overrides: str) -> DictConfig:
    """Compose a configuration as train.py does, unresolved; later overrides win."""
    try:
        with hydra.initialize_config_dir(str(project.configs().resolve()), **VERSION):
            composed = hydra.compose(
                "config", list(overrides), return_hydra_config=True
            )
        return _without_hydra(composed)
    except _ERRORS as error:
        raise explain(error) from error
    except ValueError as error:
        if "Config group override must be" in str(error):
            raise not_an_option(overrides) from error
        raise


def _without_hydra(composed: DictConfig) -> DictConfig:
    """Return what a job gets, with values in the place of references to Hydra's own,
    ${hydra:...}.

    In a job, Hydra resolves them itself; here, another composition may follow.
    """
    instance = HydraConfig.instance()
    before = instance.cfg
    instance.set_config(composed)
    try:
        for key, _, value in entries(OmegaConf.to_container(composed)):
            if (
                isinstance(value, str)
                and "${hydra:" in value
                and not key.startswith("hydra.")
            ):
                OmegaConf.update(
                    composed, key, OmegaConf.select(composed, key), force_add=True
                )
    finally:
        instance.cfg = before
    job: Any = OmegaConf.to_container(composed)
    del job["hydra"]
    return OmegaConf.create(job)  # type: ignore[no-any-return]


def configuration(*overrides: str) -> Settings:
    return check(resolve(compose(*overrides)))


def job_names(varied: Iterable[str]) -> str:
    """Return the override that names job folders by the varied keys, as
    `0_seed=0,model=lstm`."""
    # Launchers compose a job's configuration, maybe on other machines: it resolves its
    # own name.
    is_group = {key: (project.configs() / key).is_dir() for key in varied}
    references = {
        key: f"hydra.runtime.choices.{key}" if is_group[key] else key for key in varied
    }
    names = ",".join(f"{key}=${{{reference}}}" for key, reference in references.items())
    return f"hydra.sweep.subdir='${{hydra.job.num}}_{names}'"


def parse(overrides: Sequence[str]) -> list[Override]:
    """Parse `key=value` overrides in Hydra's grammar; raise InputError for sweeps and
    deletions."""
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise explain(error) from None
    for one in parsed:
        if one.is_sweep_override() or one.is_delete():
            raise InputError(
                f"{one.input_line}: expected key=value, one value for one key"
            )
    return parsed


def not_an_option(overrides: Sequence[str]) -> InputError:
    """Return an error for the first override that gives a group a value."""
    words = [word for word in overrides if re.match("[^-].*=", word)]
    for one in OverridesParser.create().parse_overrides(words):
        options = sorted(
            path.stem for path in (project.configs() / one.key_or_group).glob("*.yaml")
        )
        if options and not (
            one.is_sweep_override() or isinstance(one.value(), str | list)
        ):
            got = str(one.input_line).partition("=")[2]
            known = f"one of {', '.join(options)}"
            return InputError(
                f"{one.key_or_group}: expected {known}, got {got or 'nothing'}"
            )
    return InputError("overrides: expected options of groups, got another value")


def explain(error: BaseException) -> InputError:
    """Return a one-line InputError for a failed composition; it suggests the nearest
    key."""
    if isinstance(error, OverrideParseException):
        return InputError(
            f"overrides: expected Hydra's key=value syntax, got {error.override}; quote"
            " a value with special characters: \"key='a=b'\""
        )
    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return InputError(
            f"{mark.name}, line {mark.line + 1}: expected YAML, got {error.problem}"
        )
    text = re.sub(r"^In '[^']*': ", "", str(error))
    twice = re.search(
        r"^Multiple values for (\S+)\.|^(\S+) appears more than once", text, re.M
    )
    if twice is not None:
        group = twice[1] or twice[2]
        return InputError(
            f"{group}: expected one option, got two; leave out the + before {group}=,"
            f" or in a file write `override /{group}: OPTION`"
        )
    quoted = re.findall("'([^'=]+)", text)
    key = quoted[0] if quoted else "overrides"
    if options := re.findall(r"^\t(\S+)$", text, re.MULTILINE):  # of a group
        return _unknown_option(key, options)
    plugin = _plugin_for(key)
    key, section = _key_and_section(error.__cause__, key)
    there = _keys_there(error.__cause__, section)
    possible = [*there, *_keys_elsewhere(key, section if there else None)]
    near = called_here(key) or did_you_mean(key, possible) if quoted else ""
    if near or text.startswith("Could not override"):
        near = near or (f"; known are {', '.join(there)}" if there else "") + to_add(
            key
        )
        return InputError(f"{key}: expected a known key, got a new one{near}")
    reason = " ".join(
        re.split(r"\n(?:Config search path| +full_key)", text)[0].split()
    ).rstrip(".")
    return InputError(
        f"{key}: expected a configuration that Hydra composes, got:"
        f" {reason[:300]}{plugin}"
    )


def _unknown_option(key: str, options: Sequence[str]) -> InputError:
    """Return an error for GROUP/OPTION that is none of the options; it suggests the
    nearest one."""
    group, _, option = key.rpartition("/")
    if not group:  # Hydra names the group alone, for `model=???`
        group, option = key, "none"
    near = called_here(option) or did_you_mean(option, options) or _plugin_for(key)
    return InputError(
        f"{group}: expected one of {', '.join(options)}, got {option}{near}"
    )


def _plugin_for(key: str) -> str:
    """Return `; install ...` for a group that a plugin of Hydra may extend; else
    empty."""
    plugins = (name for prefix, name in _PLUGINS.items() if key.startswith(prefix))
    return "".join(
        f"; install a plugin of Hydra that has it, such as {name}" for name in plugins
    )


def _key_and_section(cause: BaseException | None, key: str) -> tuple[str, str]:
    """Return the key that a composition failed at, and its section: a key inside that
    of the message if the cause, an error of a mapping, names it."""
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        inner = str(cause.full_key)
        if inner.startswith(f"{key}."):
            return inner, key
    return key, key.rpartition(".")[0]


def _keys_there(cause: BaseException | None, section: str) -> list[str]:
    """Return the keys of the section in which a composition failed: those of the files
    that were chosen, as others have other keys."""
    parent: Any = getattr(cause, "parent_node", None)
    names = parent if OmegaConf.is_dict(parent) else ()
    return [f"{section}.{name}".lstrip(".") for name in names if name != "hydra"]


def _keys_elsewhere(key: str, section: str | None) -> list[str]:
    """Return the keys of configs/ outside a section, if it is known, without those that
    hold `key`."""
    others = [
        known
        for known in known_keys()
        if section is None or known.rpartition(".")[0] != section
    ]
    return [known for known in others if not key.startswith(f"{known}.")]
