"""Files of a data set: found in a folder, or downloaded into it, and checked by digest every time.

For a data set of your own:

    contents = files.read(Path(root), {"images.idx": "846f..."}, ["https://example.org/data"])

reads `root/images.idx`, or first downloads `https://example.org/data/images.idx.gz` and unpacks it.
"""

import gzip
import hashlib
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlparse
from urllib.request import url2pathname

from seedbed import offline
from seedbed.errors import InputError

NETWORK_TIMEOUT_SECONDS = 30


def read(
    folder: Path,
    sha256: Mapping[str, str],
    mirrors: Sequence[str],
    md5: Mapping[str, str] | None = None,
    otherwise: str = "",
) -> dict[str, bytes]:
    """Return the contents of files, once each has the digest that it must have.

    What is missing is downloaded; a file that is there is never replaced.

    Args:
        folder: where the files lie, or shall lie.
        sha256: name of each file, and its digest.
        mirrors: addresses (https:, http:, file:) to try in order; each has NAME.gz of every file.
        md5: name of each file, and the digest of its archive.
        otherwise: what else to do where a file is not to be had, for messages.

    Raises:
        InputError: a file is damaged, or missing and not to be had.
    """
    try:
        missing = [name for name in sha256 if not (folder / name).exists()]
        if missing and offline.is_asked_for():
            raise InputError(
                f"data.root: expected {missing[0]} in {folder}, got none; copy it there, or "
                f"{offline.ADVICE}"
            )
        if missing:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as place:
                for name in missing:
                    archive_md5 = (md5 or {}).get(name)
                    found = _download(
                        name, Path(place), mirrors, sha256[name], archive_md5, otherwise
                    )
                    found.replace(folder / name)
        return {name: checked(folder / name, digest) for name, digest in sha256.items()}
    except OSError as error:
        raise InputError(
            f"data.root: expected a folder to read and write, got {folder} ({error.strerror}); "
            f"set data.root to another{otherwise}"
        ) from error


def checked(path: Path, sha256: str) -> bytes:
    """Return the content of a file that has a digest.

    Raises:
        InputError: it has another one.
    """
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise InputError(
            f"data.root: expected {path} with SHA-256 {sha256}, got {digest} "
            f"({len(content)} bytes); delete the file and it is downloaded again"
        )
    return content


def _download(
    name: str, place: Path, mirrors: Sequence[str], sha256: str, md5: str | None, otherwise: str
) -> Path:
    """Download, unpack and check a file, from the first mirror that has it."""
    tried = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{name}.gz"
        try:
            return _unpacked(_retrieve(url, place, md5), sha256)
        except (OSError, RuntimeError, ValueError, HTTPException, EOFError, zlib.error) as error:
            tried.append(f"{url} ({' '.join(str(error).split())})")
    raise InputError(
        f"data.mirrors: expected {name}.gz from a mirror, got {', '.join(tried) or 'no mirror'}; "
        f"set data.mirrors, or data.root to a copy{otherwise}"
    )


def _retrieve(url: str, place: Path, md5: str | None) -> Path:
    """Copy or download an archive; torchvision 0.29's downloader cannot read `file:` addresses."""
    archive = place / Path(urlparse(url).path).name
    archive.unlink(missing_ok=True)
    if url.startswith("file:"):
        shutil.copyfile(url2pathname(urlparse(url).path), archive)
        return archive
    from torchvision.datasets.utils import download_url  # its import costs two seconds

    with _network_timeout(NETWORK_TIMEOUT_SECONDS):
        download_url(url, str(place), archive.name, md5)
    return archive


def _unpacked(archive: Path, sha256: str) -> Path:
    content = gzip.decompress(archive.read_bytes())
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise ValueError(f"wrong bytes: SHA-256 of {archive.stem} is {digest}")
    path = archive.with_suffix("")
    path.write_bytes(content)
    return path


@contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """Bound every wait for the network; torchvision's downloader has no limit of its own."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
