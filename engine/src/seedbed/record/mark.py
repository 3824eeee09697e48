"""The mark by which a checkout knows the runs that its own commands have started.

A run's configuration names classes to build and variables to set. That of a stranger's
record is checked against configs/ (`config.require_trusted`); one that was composed
here is not. The mark is an HMAC of config.yaml with a key that never leaves the
checkout, so a record that was edited, or that comes from elsewhere, has none. It
vouches for the configuration alone: no other file of the record is executed for it, and
no result is.
"""

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from seedbed import project
from seedbed.errors import InputError
from seedbed.record import untrusted

FILE = "config.mark"  # in the run folder
KEY = ".seedbed/key"  # in the project; git ignores it
_BYTES = 32
_SIGNED = ("config.yaml", "interpolations.json")


def write(folder: Path) -> None:
    """Mark a run folder's configuration as composed by this checkout.

    Where the project cannot be written, there is no key, and runs have no mark.
    """
    key = _read_key() or _create_key()
    if key is not None:
        (folder / FILE).write_text(f"{_of(folder, key)}\n")


def is_own(folder: Path) -> bool:
    """Return whether a run folder has the mark of this checkout."""
    key = _read_key()
    if key is None:
        return False
    with suppress(OSError, ValueError, InputError):
        written = untrusted.read_bytes(folder / FILE, 256).decode("ascii").strip()
        return hmac.compare_digest(written, _of(folder, key))
    return False


def _of(folder: Path, key: bytes) -> str:
    mark = hmac.new(key, digestmod="sha256")
    for name in _SIGNED:
        path = folder / name
        exists = path.is_symlink() or path.exists()
        content = (
            untrusted.read_bytes(path, untrusted.MAX_TEXT_BYTES) if exists else b""
        )
        mark.update(hashlib.sha256(content).digest())
    return mark.hexdigest()


def _read_key() -> bytes | None:
    """Return the key; None if there is none that this user alone can read, as git
    restores none."""
    with (
        suppress(OSError, InputError),
        untrusted.open_file(project.root() / KEY, _BYTES) as file,
    ):
        status = os.fstat(file.fileno())
        key = file.read()
        is_private = (
            status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
        )
        return key if is_private and len(key) == _BYTES else None
    return None


def _create_key() -> bytes | None:
    """Create the key, unless another process does so at the same time; return the one
    there is."""
    path = project.root() / KEY
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
            with suppress(FileExistsError):
                os.link(temporary, path)  # unlike a rename, it replaces nothing
        finally:
            temporary.unlink(missing_ok=True)
    return _read_key()
