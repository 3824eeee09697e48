"""No addresses for training processes that somebody else's record describes.

Where the variable is set, data sets find their files or say what they lack, and Python refuses to
connect or to look a host up. It is for code that this checkout trusts, with arguments that it
does not: code that means harm would find a way around it.
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
    """Return whether this process is to open no address."""
    return bool(os.environ.get(VARIABLE))


def variables(online: bool) -> dict[str, str]:
    """Return the environment variables for a training process; online: none."""
    return {} if online else {VARIABLE: "1"}


def enforce() -> None:
    """Refuse addresses from now on, if that is asked for; it cannot be taken back."""
    if is_asked_for():
        sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _BY_SOCKET:
        refused = arguments[0].family in (socket.AF_INET, socket.AF_INET6)
    else:
        refused = event in _BY_NAME and bool(arguments[0])
    if refused:
        raise OSError(errno.EACCES, f"no address is opened for a record; {ADVICE}")
