"""The packages that loggers need, looked for before anything is imported."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from seedbed.errors import InputError

INSTALL = "pip install --group engine/pyproject.toml:loggers"


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
