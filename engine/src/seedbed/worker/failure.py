"""What is shown of an error in Python: its traceback, from the user's own code on."""

import re
import sys
import sysconfig
import traceback
from pathlib import Path

from seedbed.errors import one_line
from seedbed.record.terminal import Tee

_NOT_THE_USERS = ("<", str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"))
# What a DataLoader raises instead of the error of a loader worker, whose traceback is a text.
_IN_LOADER_WORKER = re.compile(
    r"Caught \w+ in DataLoader worker process \d+\.\nOriginal (Traceback .+)", re.DOTALL
)


def reason(error: BaseException) -> str:
    """Return type and message of an error in one line, also of one in a loader worker."""
    text = _of_loader_worker(error)
    return text.splitlines()[-1] if text else one_line(error)


def show(error: BaseException) -> None:
    """Print a traceback without the engine's frames before the user's; train.log has all of it."""
    whole = "".join(traceback.format_exception(error))
    if isinstance(sys.stderr, Tee):
        sys.stderr.write_apart(of_users_code(error) or whole, whole)
    else:
        sys.stderr.write(whole)
    sys.stderr.flush()


def of_users_code(error: BaseException) -> str:
    """Return the traceback of an error from the user's first frame on; empty if there is none."""
    step = error.__traceback__
    while step is not None and not _is_users(step.tb_frame.f_code.co_filename):
        step = step.tb_next
    if step is None:
        return _of_loader_worker(error)
    return "".join(traceback.format_exception(type(error), error, step))


def _of_loader_worker(error: BaseException) -> str:
    """Return the traceback that a loader worker sent; empty if the error is not one's."""
    try:
        found = _IN_LOADER_WORKER.fullmatch(str(error))
    except Exception:  # it cannot be printed
        return ""
    return f"{found[1].rstrip()}\n" if found else ""


def _is_users(file: str) -> bool:
    """Return whether a file is of neither the engine nor Python nor an installed package."""
    return not file.startswith(_NOT_THE_USERS) and "-packages/" not in file
