"""Composing a configuration outside of train.py; and all that depends on Hydra's version."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from seedbed import project
from seedbed.config import hydra_errors
from seedbed.config.check import check, resolve

# Hydra 1.3 has to be told to behave as itself, 1.4 warns of being told so, and 1.5 does not know
# the parameter any more.
VERSION: dict[str, str] = {"version_base": "1.3"} if hydra.__version__.startswith("1.3.") else {}


def compose(*overrides: str, folder: Path | None = None) -> DictConfig:
    """Return what train.py composes of overrides, of which later ones win; nothing is resolved.

    Args:
        folder: where config.yaml and the groups are; by default configs/ of this checkout.

    Raises:
        InputError: Hydra cannot compose it.
    """
    folder = (folder or project.configs()).resolve()
    try:
        with hydra.initialize_config_dir(str(folder), **VERSION):
            return hydra.compose("config", overrides=list(overrides))
    except hydra_errors.COMPOSITION_ERRORS as error:
        raise hydra_errors.explain(error) from error


def configuration(*overrides: str, folder: Path | None = None) -> DictConfig:
    """Return the configuration of a run, resolved and checked; see `compose`."""
    resolved = resolve(compose(*overrides, folder=folder))
    check(resolved)
    return resolved
