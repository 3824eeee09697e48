"""Files of a data set: found in a folder, or downloaded into it, and checked by digest every time.

    contents = files.read(Path(root), {"images.idx": "846f..."}, ["https://example.org/data"])

reads `root/images.idx`, or first downloads `https://example.org/data/images.idx.gz` and unpacks it.
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
from seedbed.record.files import write_atomically

NETWORK_TIMEOUT_SECONDS = 30


def read(
    folder: Path, sha256: Mapping[str, str], mirrors: Sequence[str], otherwise: str = ""
) -> dict[str, bytes]:
    """Return the contents of files, each of which must have its digest.

    What is missing is downloaded; a file that is there is never replaced.

    Args:
        sha256: name of each file, and its digest.
        mirrors: addresses (https:, http:, file:) to try in order; each has NAME.gz of every file.
        otherwise: what else to do where a file is not to be had, for messages.

    Raises:
        InputError: a file is damaged, or missing and not to be had.
    """
    contents = {}
    try:
        for name, digest in sha256.items():
            if not (folder / name).exists():
                content = _download(name, digest, mirrors, folder, otherwise)
                folder.mkdir(parents=True, exist_ok=True)
                write_atomically(folder / name, content)
            contents[name] = checked(folder / name, digest)
    except OSError as error:
        raise InputError(
            f"data.root: expected a folder to read and write, got {folder} ({error.strerror}); "
            f"set data.root to another{otherwise}"
        ) from error
    return contents


def checked(path: Path, sha256: str) -> bytes:
    """Return the content of a file; raise InputError if its digest is another one."""
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise InputError(
            f"data.root: expected {path} with SHA-256 {sha256}, got {digest} "
            f"({len(content)} bytes); delete the file and it is downloaded again"
        )
    return content


def _download(
    name: str, sha256: str, mirrors: Sequence[str], folder: Path, otherwise: str
) -> bytes:
    """Return the content of a file from the first mirror that has the right one."""
    if offline.is_asked_for():
        raise InputError(
            f"data.root: expected {name} in {folder}, got none; copy it there, or {offline.ADVICE}"
        )
    tried = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}.gz"
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
        f"data.mirrors: expected {name}.gz from a mirror, got {', '.join(tried) or 'no mirror'}; "
        f"set data.mirrors, or data.root to a copy{otherwise}"
    )
