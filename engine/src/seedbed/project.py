"""Where the project lies that this process works for."""

import os
import sysconfig
from pathlib import Path

# The variable by which a command tells its folder to the processes that it starts.
PROJECT = "SEEDBED_PROJECT"
_STANDARD_LIBRARY = tuple(f"{sysconfig.get_path(it)}/" for it in ("stdlib", "platstdlib"))


def root() -> Path:
    """Return the folder of the project, the one with train.py, configs/ and src/.

    It is that of the script that was started; otherwise the current folder, or the nearest one
    above it that has a configs/config.yaml.
    """
    if PROJECT in os.environ:
        return Path(os.environ[PROJECT])
    here = Path.cwd()
    above = (each for each in (here, *here.parents) if (each / "configs/config.yaml").is_file())
    return next(above, here)


def configs() -> Path:
    return root() / "configs"


def is_installed(file: str) -> bool:
    """Return whether a module's file is one of Python's, or of an installed distribution."""
    if not file.startswith("/"):  # built in, or made by a library
        return True
    places = ("/site-packages/", "/dist-packages/")
    return any(place in file for place in places) or file.startswith(_STANDARD_LIBRARY)
