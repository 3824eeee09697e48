"""Offline mode, for training processes that run from another person's record.

If the variable is set, data sets do not download missing files, and Python refuses to connect or
to look up a host. Malicious code could circumvent it: it is for untrusted arguments alone.
"""

import errno
import os
import socket
import sys
from typing import Any

VARIABLE = "SEEDBED_OFFLINE"
ADVICE = "if the record's addresses are yours: --online"
_BY_SOCKET = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_BY_NAME = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}


def is_asked_for() -> bool:
    """Return whether this process must not open network connections."""
    return bool(os.environ.get(VARIABLE))


def variables(online: bool) -> dict[str, str]:
    """Return the environment variables for a training process; none if online."""
    # Albumentations would look for a newer version of itself, each time that it is imported.
    return {} if online else {VARIABLE: "1", "NO_ALBUMENTATIONS_UPDATE": "1"}


def enforce() -> None:
    """Refuse network connections from now on, if asked for; this cannot be undone."""
    if is_asked_for():
        sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _BY_SOCKET:
        refused = arguments[0].family in (socket.AF_INET, socket.AF_INET6)
    else:
        refused = event in _BY_NAME and bool(arguments[0])
    if refused:
        raise OSError(errno.EACCES, f"no address is opened for a record; {ADVICE}")
