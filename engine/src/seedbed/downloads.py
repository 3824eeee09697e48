"""Files of a data set: downloaded if missing, and checked by SHA-256 at every read.

Public: a project may import it.
"""

import gzip
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

from seedbed import offline
from seedbed.errors import InputError
from seedbed.record import write_atomically

__all__ = ["checked", "read"]

NETWORK_TIMEOUT_SECONDS = 30


def read(
    folder: Path, sha256: Mapping[str, str], mirrors: Sequence[str], advice: str = ""
) -> dict[str, bytes]:
    """Return the contents of files by name; missing ones are downloaded, none is
    replaced.

    Args:
        sha256: digest of each file, by name.
        mirrors: URLs (https:, http:, file:) to try in order; they hold each file as
        NAME.gz.
        advice: what else one can do without the files, for the end of an error's
        message.

    Raises:
        InputError: a folder that cannot be read or written, wrong bytes, or no mirror
            that has the file.
    """
    contents = {}
    try:
        for name, digest in sha256.items():
            if not (folder / name).exists():
                content = _download(folder / name, digest, mirrors, advice)
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / name, content)
            contents[name] = checked(folder / name, digest)
    except OSError as error:
        raise InputError(
            f"data.root: expected a folder to read and write, got {folder}"
            f" ({error.strerror}); set data.root to another{advice}"
        ) from error
    return contents


def checked(path: Path, sha256: str) -> bytes:
    """Return the content of a file; raise InputError if its digest differs."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise InputError(
            f"data.root: expected {path} with SHA-256 {sha256}, got {digest} "
            f"({len(content)} bytes); delete the file and it is downloaded again"
        )
    return content


def _download(path: Path, sha256: str, mirrors: Sequence[str], advice: str) -> bytes:
    """Return the decompressed content from the first mirror where its digest is
    right."""
    if offline.is_asked_for():
        raise InputError(
            f"data.root: expected {path}, got none; copy it, or {offline.ADVICE}"
        )
    tried = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{path.name}.gz"
        try:
            with urlopen(url, timeout=NETWORK_TIMEOUT_SECONDS) as response:
                content = gzip.decompress(response.read())
        except (OSError, ValueError, HTTPException, EOFError, zlib.error) as error:
            tried.append(f"{url} ({' '.join(str(error).split())})")
            continue
        digest = hashlib.sha256(content).hexdigest()
        if digest == sha256:
            return content
        tried.append(f"{url} (wrong bytes: SHA-256 {digest})")
    raise InputError(
        f"data.mirrors: expected {path.name}.gz from a mirror, got"
        f" {', '.join(tried) or 'none'}; set data.mirrors, or data.root to a"
        f" copy{advice}"
    )
