"""Composing a configuration outside of train.py: for scripts, measurements and tests."""

from pathlib import Path

import hydra
from omegaconf import DictConfig

from seedbed import project
from seedbed.config import hydra_errors
from seedbed.config.check import check, resolve


def compose(*overrides: str, folder: Path | None = None) -> DictConfig:
    """Return what train.py composes of overrides, of which later ones win; nothing is resolved.

    Args:
        folder: where config.yaml and the groups are; by default configs/ of this checkout.

    Raises:
        InputError: Hydra cannot compose it.
    """
    folder = (folder or project.configs()).resolve()
    try:
        with hydra.initialize_config_dir(str(folder), version_base="1.3"):
            return hydra.compose("config", overrides=list(overrides))
    except hydra_errors.COMPOSITION_ERRORS as error:
        raise hydra_errors.explain(error) from error


def configuration(*overrides: str, folder: Path | None = None) -> DictConfig:
    """Return the configuration of a run, resolved and checked; see `compose`."""
    resolved = resolve(compose(*overrides, folder=folder))
    check(resolved)
    return resolved
