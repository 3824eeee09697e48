"""Where the project lies that this process works for."""

import os
import sysconfig
from functools import cache
from pathlib import Path

# The variable by which a command tells its folder to the processes that it starts.
PROJECT = "SEEDBED_PROJECT"


def root() -> Path:
    """Return the folder of the project, the one with train.py, configs/ and src/.

    It is that of the script that was started; otherwise the current folder, or the nearest one
    above it that has a configs/config.yaml.
    """
    named = os.environ.get(PROJECT)
    if named:
        return Path(named)
    here = Path.cwd()
    above = (folder for folder in (here, *here.parents) if _is_project(folder))
    return next(above, here)


def configs() -> Path:
    """Return the folder of the project's configurations."""
    return root() / "configs"


def _is_project(folder: Path) -> bool:
    return (folder / "configs" / "config.yaml").is_file()


def is_installed(file: str) -> bool:
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
