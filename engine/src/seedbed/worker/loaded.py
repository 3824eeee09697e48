"""The versions of the distributions that a run uses."""

import sys
import sysconfig
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from types import FunctionType, ModuleType
from typing import Any

from seedbed import __version__
from seedbed.config import targets_of

# What every run stands on, and what decodes and transforms images; as packages and distributions.
CORE = {
    "torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "PIL": "pillow",
    "hydra": "hydra-core", "omegaconf": "omegaconf",
}  # fmt: skip
_SECTIONS = ("data", "model", "method", "optimizer", "schedule", "metrics", "callbacks")


def versions() -> dict[str, str | None]:
    """Return the engine's version and that of each core distribution; None: not installed."""
    return {"seedbed": __version__, **{name: version(name) for name in CORE.values()}}


def more_versions(settings: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the versions of the other distributions that classes of a run come from.

    These are the distributions of the classes that the configuration names, and those that the
    modules of these classes, and other modules that are not installed, import. To be called when
    the classes are imported.
    """
    targets = {target for name in _SECTIONS for _, target in targets_of(settings.get(name), name)}
    modules = {target.rpartition(".")[0] for target in targets}
    used = {target.partition(".")[0] for target in targets}
    for name, module in list(sys.modules.items()):
        is_own = not name.startswith("seedbed.") and not _is_installed(module)
        if is_own or name in modules:
            used |= set(_imported(module))
    others = used - CORE.keys() - sys.stdlib_module_names - {"seedbed"}
    installed = {name for name in others if _is_installed(sys.modules.get(name))}
    if not installed:
        return {}
    found = _distributions(tuple(sys.path))
    return {each: version(each) for name in sorted(installed) for each in found.get(name, ())}


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the packages that the names of a module come from."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value.__name__.partition(".")[0]
        else:
            what = value if isinstance(value, type | FunctionType) else type(value)
            yield str(what.__module__).partition(".")[0]


def _is_installed(module: ModuleType | None) -> bool:
    """Return whether a module is one of Python's, or of a distribution that was installed."""
    file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return not isinstance(file, str) or is_installed_file(file)


def is_installed_file(file: str) -> bool:
    """Return whether a module's file is one of Python's, or of an installed distribution."""
    return (
        not file.startswith("/")  # built in, or made by a library
        or "/site-packages/" in file
        or "/dist-packages/" in file
        or file.startswith(_standard_library())
    )


@cache
def _standard_library() -> tuple[str, ...]:
    return tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


@cache
def _distributions(_path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the distributions of each package on a path; the search takes a tenth of a second."""
    return metadata.packages_distributions()


def version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
