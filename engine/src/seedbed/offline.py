"""Offline mode, for whatever is built or trained from another person's record.

Data sets do not download missing files, and Python refuses to connect or to look up a
host. A process of its own is told so by a variable; in the user's own, as for
`seedbed.load`, it lasts for a block. Malicious code could circumvent it: it is for
untrusted arguments alone. `config.may_connect` decides for which records.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "SEEDBED_OFFLINE"
ADVICE = "if the record's addresses are yours: --online, in Python online=True"
_BY_SOCKET = {"socket.connect", "socket.sendto", "socket.sendmsg"}
_BY_NAME = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"}


class _Here:
    """The state of this process, of all its threads: what is built may start some."""

    blocks = 0  # how many blocks are offline now
    is_watched = False  # the hook is there, which cannot be removed


class Refused(OSError):
    """An address that is not opened for a record."""


def is_asked_for() -> bool:
    """Return whether this process must not open network connections now."""
    return _Here.blocks > 0 or bool(os.environ.get(VARIABLE))


def variables(online: bool) -> dict[str, str]:
    """Return the environment variables for a training process; none if online."""
    # Albumentations would look for a newer version of itself, each time that it is
    # imported.
    return {} if online else {VARIABLE: "1", "NO_ALBUMENTATIONS_UPDATE": "1"}


def enforce() -> None:
    """Refuse network connections from now on, if the variable asks for it."""
    if is_asked_for():
        _watch()
        _Here.blocks += 1


@contextmanager
def refusing(is_needed: bool = True) -> Iterator[None]:
    """Refuse network connections in a block, if needed, to all threads of this
    process."""
    if not is_needed:
        yield
        return
    _watch()
    _Here.blocks += 1
    try:
        yield
    finally:
        _Here.blocks -= 1


def is_refusal(error: BaseException) -> bool:
    """Return whether an exception is due to an address that was not opened."""
    causes = filter(None, (error.__cause__, error.__context__))
    return isinstance(error, Refused) or any(map(is_refusal, causes))


def _watch() -> None:
    if not _Here.is_watched:
        sys.addaudithook(_refuse)
        _Here.is_watched = True


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _Here.blocks:
        return
    if event in _BY_SOCKET:
        refused = arguments[0].family in (socket.AF_INET, socket.AF_INET6)
    else:
        refused = event in _BY_NAME and bool(arguments[0])
    if refused:
        raise Refused(errno.EACCES, f"no address is opened for a record; {ADVICE}")
