"""Resuming a sweep: what is finished is kept, what was interrupted resumed, the rest started.

It is the sweep's own command once more, in its folder, with jobs that know that they may have been
there before. So launcher and sweeper are what they were, and a search proposes the same trials.
`sweep.json`, in the sweep's folder, keeps the command and what code it was.
"""

import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn

from omegaconf import DictConfig, OmegaConf

from seedbed import offline, project, record
from seedbed.errors import InputError
from seedbed.record import blobs, origin, source, terminal, untrusted
from seedbed.record.change import Change
from seedbed.sweeps import plan as sweep_plan
from seedbed.worker import loaded

# The variable of `hydra.job.env_set` that makes jobs resume, on any machine; and its values.
RESUME = "SEEDBED_RESUME"
UNCHANGED, CHANGED = "unchanged", "changed"

# What of a sweep's folder is handed to Hydra: it may choose among what is installed, and set its
# numbers and names. What could name code to run has to be given again on the command line.
_GROUPS = ("hydra/launcher", "hydra/sweeper")
_SEARCHED = "hydra.sweeper.params."  # and a key of the runs, with what is tried for it
_SETTINGS = re.compile(r"hydra\.(launcher|sweeper)(\.\w+)+")
_CODE = ("_target_", "custom_search_space", "setup", "runtime_env", "address", "args", "folder",
         "parameters", "python", "storage")  # fmt: skip
_NAME_OR_NUMBER = re.compile(r"[\w.:+-]*")
_SUBFOLDER = re.compile(r"(?!.*\.\.)([\w=,.-]|\$\{hydra\.job\.(num|override_dirname)\})+")
# Of runs: names, numbers and lists of them, and no path that leads elsewhere.
_KEY = re.compile(r"[\w-]+([./][\w-]+)*")
_CHOICE = re.compile(r"(?!.*\.\.)([\w ,.+*()\[\]'\"=-]|(?<=\w)/(?=\w))*")
# What `train.py` and this module set themselves.
_OURS = ("hydra.sweep.dir", "hydra.run.dir", "hydra.mode", "hydra.job.env_set.SEEDBED_",
         "hydra.job.config.override_dirname.exclude_keys")  # fmt: skip

_held = ExitStack()  # the lock of the sweep that this process leads, to its end


def begin(folder: Path, hydra: DictConfig) -> None:
    """Take a sweep for this process, and note how it was started unless it was before.

    Raises:
        InputError: another process leads it, or it cannot be resumed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _held.enter_context(record.lock(folder, "sweep"))
    if RESUME in hydra.job.env_set:
        _require_same_search(hydra.sweeper)
        return
    _require_new(folder, hydra.sweeper)
    plan = {"overrides": OmegaConf.to_container(hydra.overrides), **_configuration(hydra)}
    record.write_json(folder / record.SWEEP, plan | _code())


def resume_run(
    folder: Path, overrides: Sequence[str], allow_changed: bool, online: bool = False
) -> NoReturn:
    """Become the process that leads a sweep to its end, and reports on it.

    Args:
        overrides: words for launcher and sweeper, instead of those it was started with; and those
            of its words that can name code, once more.
        allow_changed: resume although something changed that can alter bits.
        online: let its runs open addresses that the folder names.

    Raises:
        InputError: it cannot be resumed, or not with these overrides.
    """
    plan = record.read_json(folder / record.SWEEP)
    try:
        options, words = _options(folder, plan), _words(plan["overrides"], overrides)
        changes = origin.changes(_origin(plan), _origin(_code()))
    except (AttributeError, KeyError, TypeError):
        raise InputError(
            f"{folder / record.SWEEP}: expected a sweep's overrides and code, got something else; "
            "start the sweep again"
        ) from None
    sweep_plan.require_countable(folder, words)
    _require_unchanged(changes, allow_changed)
    untrusted.require_no_way_out(folder)
    _require_idle(folder)
    command = [sys.executable, str(project.root() / "train.py"), "--multirun", *options]
    command += [
        *words,
        f"hydra.sweep.dir={_quoted(folder)}",
        f"+hydra.job.env_set.{RESUME}={CHANGED if allow_changed else UNCHANGED}",
    ]
    command += [f"+hydra.job.env_set.{k}='{v}'" for k, v in offline.variables(online).items()]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def _words(recorded: dict[str, list[str]], given: Sequence[str]) -> list[str]:
    """Return the overrides of a sweep, with what was given now instead of what was then."""
    task = recorded["task"]
    unsafe = [word for word in task if _can_bring_code(word)]
    for word in given:
        if not word.startswith("hydra") and word not in unsafe:
            raise InputError(
                f"{word}: expected words for a launcher, such as hydra.launcher.n_jobs=2, got a "
                "setting of runs; resume with them one by one to change it"
            )
    kept = [word for word in recorded["hydra"] if not _key(word).startswith(_OURS)]
    replaced = {_key(word) for word in given}
    if "hydra/launcher" in replaced:  # its settings are of no use to another launcher
        kept = [word for word in kept if not _key(word).startswith("hydra.launcher.")]
    kept = [word for word in kept if _key(word) not in replaced]
    unsafe = [word for word in unsafe if word not in given]
    unsafe += [word for word in kept if not _is_taken_over(word)]
    if unsafe:
        raise InputError(
            f"{_key(unsafe[0])}: expected it on the command line, because it can name code, got it "
            f"from a folder; resume with these words as well: {shlex.join(unsafe)}"
        )
    return [*(word for word in task if word not in given), *kept, *given]


def _is_taken_over(word: str) -> bool:
    """Return whether a word for Hydra chooses what is installed, or is a number."""
    key, value = _key(word), word.partition("=")[2]
    if key in _GROUPS:
        return bool(re.fullmatch(r"[\w-]+", value))
    if key == "hydra.sweep.subdir":
        return bool(_SUBFOLDER.fullmatch(value))
    if key.startswith(_SEARCHED):
        return not _can_bring_code(f"{key.removeprefix(_SEARCHED)}={value}")
    harmless = _SETTINGS.fullmatch(key) and not any(code in key for code in _CODE)
    return bool(harmless and _NAME_OR_NUMBER.fullmatch(value))


def _can_bring_code(word: str) -> bool:
    """Return whether a word for runs could have code run that this checkout does not trust.

    By Hydra, by a package that classes may come from, by an environment variable (LD_PRELOAD), by
    a file that lies elsewhere, or by a group that is put where those are. Or could send what is
    here elsewhere: by a logger, by an interpolation (`${oc.env:HOME}`).
    """
    key, value = _key(word), word.partition("=")[2]
    chosen = "." not in key or "/" in key  # an option of a group, or a value at the top
    return (
        key.startswith(("hydra", "trusted_packages", "determinism.env", "logger."))
        or not _KEY.fullmatch(key)
        or "${" in value
        or (chosen and not _CHOICE.fullmatch(value))
    )


def _key(word: str) -> str:
    return word.lstrip("+~ \t").partition("=")[0].rstrip()


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"


def _configuration(hydra: DictConfig) -> dict[str, Any]:
    """Return which configuration is composed, and the folders of it that are not this checkout's.

    Those of --config-dir and --config-path; Hydra's own are packages.
    """
    ours = str(project.configs())
    named = ("main", "command-line")
    found = [one.path for one in hydra.runtime.config_sources if one.provider in named]
    return {
        "config_name": hydra.job.config_name,
        "config_folders": [path for path in found if path != ours],
    }


def _options(folder: Path, plan: Mapping[str, Any]) -> list[str]:
    """Return the options for Hydra that a sweep was started with.

    Raises:
        InputError: it was composed from a folder elsewhere, whose files can name code.
    """
    elsewhere, name = plan.get("config_folders"), plan.get("config_name") or "config"
    if elsewhere or not re.fullmatch(r"[\w-]+(\.yaml)?", name):
        raise InputError(
            f"{folder}: expected a sweep of this checkout's configs/, got one of "
            f"{elsewhere[0] if elsewhere else name}, which could name code; resume with its runs "
            "one by one, or repeat its command into another folder"
        )
    return [] if name == "config" else [f"--config-name={name}"]


def _code() -> dict[str, Any]:
    """Return the code that is here and the versions of what it stands on, without importing it."""
    git, patch = source.snapshot(project.root())
    return {
        "git": git,
        "patched": blobs.patched_files(patch),
        "versions": {"python": platform.python_version(), **loaded.versions()},
    }


def _origin(code: dict[str, Any]) -> origin.Origin:
    environment = {"git": code["git"], "versions": code["versions"]}
    return origin.Origin({}, environment, code["patched"])


def _require_unchanged(changes: Iterable[Change], allow_changed: bool) -> None:
    """Raise InputError if runs to come would not be like those that there are.

    This holds for every preset: runs of one sweep are there to be compared. Files of configs/ that
    are new cannot have taken part in it.
    """
    for change in changes:
        in_configs = change.key.startswith("configs/") and change.before is not None
        if not change.alters_bits and not in_configs:
            continue
        if not allow_changed:
            raise InputError(
                f"{change.key}: expected what the sweep was started with, {change.before}, got "
                f"{change.now}; undo it, or resume all the same with --allow-changed"
            )
        print(f"changed since the sweep was started: {change}", flush=True)


def _require_idle(folder: Path) -> None:
    """Raise InputError if a process works on a run: jobs of a cluster outlive who sent them."""
    try:
        for config in sorted(folder.rglob("config.yaml")):
            with record.lock(config.parent):
                pass
    except OSError as error:
        raise InputError(
            f"{folder}: expected a folder that can be written, got {error.strerror}; copy it to "
            "where it can"
        ) from None


def _require_new(folder: Path, sweeper: DictConfig) -> None:
    """Raise InputError where another sweep has runs; only a search with a storage adds to them."""
    if not record.is_sweep(folder) or sweeper.get("storage") is not None:
        return
    if any(True for _ in folder.rglob("config.yaml")):
        raise InputError(
            f"hydra.sweep.dir: expected a folder without a sweep, got {folder}, which holds one; "
            f"choose another, or resume it with {terminal.resume_command(folder)}"
        )


def _require_same_search(sweeper: DictConfig) -> None:
    """Raise InputError for a search that would propose other trials than it did."""
    if not str(sweeper.get("_target_")).endswith(".OptunaSweeper"):
        return
    if sweeper.get("storage") is not None:
        raise InputError(
            "hydra.sweeper.storage: expected null to resume with a search from its runs, got "
            f"{sweeper.storage}; repeat the command, and Optuna goes on from there"
        )
    if sweeper.sampler.get("seed") is None:
        raise InputError(
            "hydra.sweeper.sampler.seed: expected the seed that the search was started with, got "
            "none, so that it proposes other trials; start it again with a seed"
        )
