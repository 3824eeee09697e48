"""What Python has loaded for a run: its own code, and the distributions that it uses."""

import os
import sys
import sysconfig
from collections.abc import Container, Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from seedbed import __version__
from seedbed.config import targets_of
from seedbed.record import git, source

# What every run stands on, and what decodes and transforms images; as packages and distributions.
CORE = {
    "torch": "torch", "torchvision": "torchvision", "numpy": "numpy", "PIL": "pillow",
    "hydra": "hydra-core", "omegaconf": "omegaconf",
}  # fmt: skip
_SECTIONS = ("data", "model", "method", "optimizer", "schedule", "metrics", "callbacks")


def versions() -> dict[str, str | None]:
    """Return the engine's version and that of each core distribution; None: not installed."""
    return {"seedbed": __version__, **{name: _version(name) for name in CORE.values()}}


def more_versions(settings: Mapping[str, Any], root: Path) -> dict[str, str | None]:
    """Return the versions of the other distributions that classes of a run come from.

    These are the distributions of the classes that the configuration names, and those that the
    modules of these classes, and other modules of the checkout, import. To be called when the
    classes are imported.
    """
    targets = {target for name in _SECTIONS for _, target in targets_of(settings.get(name), name)}
    modules = {target.rpartition(".")[0] for target in targets}
    used = {target.partition(".")[0] for target in targets}
    for name, module in list(sys.modules.items()):
        is_own = not name.startswith("seedbed.") and file_below(module, root) is not None
        if is_own or name in modules:
            used |= set(_imported(module))
    others = used - CORE.keys() - sys.stdlib_module_names - {"seedbed"}
    installed = {name for name in others if _is_installed(sys.modules.get(name))}
    if not installed:
        return {}
    found = _distributions(tuple(sys.path))
    return {each: _version(each) for name in sorted(installed) for each in found.get(name, ())}


def unrecorded(recorded: Container[str], settings: Mapping[str, Any], root: Path) -> dict[str, str]:
    """Return the code that Python has loaded, and that is in no record, with a description.

    Args:
        recorded: paths of the files that commit and patch hold, from the checkout's root.
        settings: packages of the classes that they name; where they lie elsewhere, and are not
            installed, they are named, too.
    """
    lacks = {}
    packages = {target.partition(".")[0] for _, target in targets_of(settings)}
    for name, module in list(sys.modules.items()):
        path = file_below(module, root)
        if path is not None:
            key = git.printable(path.as_posix())
            if key not in recorded:
                lacks[key] = _described(root / path)
        elif name.partition(".")[0] in packages and not _is_installed(module):
            file = getattr(module, "__file__", None)
            if file:
                ending = "/__init__.py" if hasattr(module, "__path__") else ".py"
                lacks[f"{name.replace('.', '/')}{ending}"] = _described(Path(file))
    return lacks


def _described(path: Path) -> str:
    try:
        return f"not known to git, {source.described(path)}"
    except OSError as error:
        return f"not known to git, {error.strerror}"


def _imported(module: ModuleType) -> Iterator[str]:
    """Yield the packages that the names of a module come from."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value.__name__.partition(".")[0]
        else:
            what = value if isinstance(value, type | FunctionType) else type(value)
            yield str(what.__module__).partition(".")[0]


def file_below(module: ModuleType, root: Path) -> Path | None:
    """Return where in the checkout a module's file lies; None for one that lies elsewhere."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or _is_installed(module):
        return None
    if not file.startswith(f"{root}/"):  # reached by a link
        file = os.path.join(_real_folder(os.path.dirname(file)), os.path.basename(file))
    return Path(file).relative_to(root) if file.startswith(f"{root}/") else None


@cache
def _real_folder(path: str) -> str:
    return os.path.realpath(path)


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


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
