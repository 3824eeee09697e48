"""What is made once for all processes of a test session: some runs take as long as many tests."""

import fcntl
import shutil
from collections.abc import Callable
from pathlib import Path


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` has filled, in whichever process asked for it first.

    Who asks meanwhile waits. If `make` fails, the next one tries again. Tests only read the
    folder: it is the same one for all.

    Args:
        folder: below `shared`, the fixture of all tests.
    """
    made = folder.with_name(f"{folder.name}.made")
    with open(folder.with_name(f"{folder.name}.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
