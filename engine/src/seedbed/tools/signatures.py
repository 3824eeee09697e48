"""Signatures of archives: Ed25519, in FILE.zip.sig, as `openssl pkeyutl` makes them.

It needs the package cryptography, and is imported when a signature is asked for.
"""

import mmap
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_pem_public_key,
)

from seedbed import record
from seedbed.errors import InputError, one_line
from seedbed.record import untrusted

_MOST_BYTES = 1 << 14  # of a key
_BYTES = 64  # of a signature


def private_key(path: Path) -> Any:
    """Return the private key in a PEM file without a password."""
    try:
        key = load_pem_private_key(untrusted.read_bytes(path, _MOST_BYTES), None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise _no_key("--sign", path, "private", one_line(error)) from None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise _no_key("--sign", path, "private", type(key).__name__)
    return key


def public_key(path: Path) -> Any:
    """Return the public key in a PEM file."""
    try:
        key = load_pem_public_key(untrusted.read_bytes(path, _MOST_BYTES))
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise _no_key("--key", path, "public", one_line(error)) from None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        raise _no_key("--key", path, "public", type(key).__name__)
    return key


def _no_key(option: str, path: Path, private_or_public: str, got: str) -> InputError:
    return InputError(
        f"{option}: expected a PEM file of a {private_or_public} Ed25519 key without a"
        f" password, got {path} ({got}); make one by openssl genpkey -algorithm ed25519"
    )


def sidecar(archive: Path) -> Path:
    """Return the file of the signature of an archive."""
    return archive.with_name(f"{archive.name}.sig")


def sign(archive: Path, key: Any) -> Path:
    """Write the signature of an archive beside it; return its file."""
    with (
        open(archive, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        record.write_atomically(sidecar(archive), key.sign(content))
    return sidecar(archive)


def is_signed(archive: Path, key: Any) -> bool:
    """Return whether the signature beside an archive is by a public key."""
    try:
        signature = untrusted.read_bytes(sidecar(archive), _BYTES)
        with (
            open(archive, "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            key.verify(signature, content)
    except InvalidSignature:
        return False
    except (OSError, ValueError) as error:
        raise InputError(
            f"--check: expected an archive and its signature {sidecar(archive).name},"
            f" got {one_line(error)}"
        ) from None
    return True
