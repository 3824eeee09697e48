"""From a run and the overrides of a command line to a process of its own that works with it.

The process starts under the environment variables of the run's preset, as in training.
"""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, offline, record
from seedbed.config import compose, hydra_errors
from seedbed.errors import InputError
from seedbed.record import untrusted

_MISSING: Any = object()


def settings_of(run: Path, overrides: Sequence[str], trust: Sequence[str] = ()) -> DictConfig:
    """Return the configuration of a run with overrides, if nothing in it is not trusted here.

    It is for one process, which logs nothing.

    Args:
        overrides: `data=NAME` for another data set of configs/data, and `key=value`.
        trust: names that the run may have, beside those of files in configs/.

    Raises:
        InputError: the folder is no run, or it or the overrides ask for what cannot be.
    """
    record.require_run(run)
    untrusted.require_no_way_out(run)
    settings = record.read_config(run)
    config.require_replayable(settings)
    settings.pop("logger", None)
    for override in sorted(_parsed(overrides), key=lambda one: one.key_or_group != "data"):
        _apply(override, settings)
    if "trainer" in settings:
        settings.trainer.processes = 1
    settings = config.resolve(settings)
    config.require_trusted(settings, run, trust)
    config.check(settings)
    return settings


def start(module: str, settings: DictConfig, request: Mapping[str, Any], online: bool) -> int:
    """Run a module as a process that `read` gives settings and request; return its exit status."""
    environment = launch.training_environment(settings) | offline.variables(online)
    with tempfile.TemporaryDirectory(prefix="seedbed-") as folder:
        OmegaConf.save(settings, Path(folder, "config.yaml"))
        Path(folder, "request.json").write_text(json.dumps(request))
        command = [sys.executable, "-m", module, folder]
        return launch.run_passing_signals(command, launch.alone(environment))


def read() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings and request of this process; from now on addresses are as they say."""
    if len(sys.argv) != 2:
        raise InputError(f"usage: expected one folder, got {len(sys.argv) - 1}; name one")
    folder = Path(sys.argv[1])
    offline.enforce()
    plain: Any = OmegaConf.to_container(record.read_config(folder))
    return plain, record.read_json(folder / "request.json")


def _parsed(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(list(overrides))
    except OverrideParseException as error:
        raise hydra_errors.explain(error) from None


def _apply(override: Override, settings: DictConfig) -> None:
    key, text = override.key_or_group, override.input_line
    if override.is_sweep_override() or override.is_delete():
        raise InputError(f"{text}: expected key=value; give one value for one key")
    if key == "data":
        settings.data = _composed(str(text)).data
        return
    known = OmegaConf.select(settings, key, default=_MISSING)
    if (known is _MISSING and not key.startswith("data.")) or isinstance(known, DictConfig):
        raise InputError(
            f"{key}: expected data=NAME, or a key of the run's config.yaml with a value of its own,"
            f" got {'a new one' if known is _MISSING else 'a group'}; see config.yaml"
        )
    OmegaConf.update(settings, key, override.value(), merge=False, force_add=True)


def _composed(override: str) -> DictConfig:
    """Return the configuration of train.py with another data set, nothing of it resolved."""
    return compose.compose(override)
