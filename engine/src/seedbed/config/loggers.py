"""The `logger` section of a configuration: chosen by name, checked before anything is imported."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import project
from seedbed.errors import InputError

INSTALL = "pip install --group engine/pyproject.toml:loggers"


def choose(names: Any, settings: DictConfig) -> dict[str, Any]:
    """Return the `logger` section of a configuration for other loggers, as Hydra composes it.

    Args:
        names: one name, or a list: files in configs/logger/.
        settings: the configuration that their `${...}` refer to.
    """
    folder = project.configs() / "logger"
    known = {path.stem: path for path in folder.glob("*.yaml")}
    chosen = OmegaConf.create({key: value for key, value in settings.items() if key != "logger"})
    chosen["logger"] = {}
    for name in names if isinstance(names, list) else [names]:
        if name not in known:
            raise InputError(
                f"logger: expected one of {', '.join(sorted(known))}, got {name}; "
                "several are given as a list: logger=[csv,tensorboard]"
            )
        chosen.logger.merge_with(OmegaConf.load(known[name]))
    return OmegaConf.to_container(chosen.logger, resolve=True)  # type: ignore[return-value]


def require_installed(section: Mapping[str, Any]) -> None:
    """Raise InputError for a `logger` section whose packages are missing.

    Packages are looked for and not imported: this runs before anything slow is.
    """
    for name, spec in section.items():
        for package in spec.get("requires") or ():
            if not is_installed(package):
                raise InputError(
                    f"logger.{name}: expected the package {package}, got none that is installed; "
                    f"{INSTALL}"
                )


def is_installed(package: str) -> bool:
    """Return whether a package is there; a folder of that name, such as W&B leaves, is none."""
    found = find_spec(package)
    return found is not None and found.origin is not None
