"""Files of a data set: the right bytes from a folder or a mirror, or one line and nothing left."""

import gzip
import hashlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from project.data import files
from seedbed.errors import InputError

CONTENTS = {"a.bin": bytes(range(256)), "b.bin": b"b" * 1000}
SHA256 = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENTS.items()}


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    folder = tmp_path / "a mirror"
    folder.mkdir()
    for name, content in CONTENTS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture
def address(mirror: Path) -> Iterator[str]:
    """Serve the mirror over http."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(mirror))  # type: ignore[arg-type]

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()


def test_a_web_mirror_serves(address: str, tmp_path: Path) -> None:
    """After one that nobody answers."""
    assert files.read(tmp_path / "data", SHA256, ["http://localhost:9", address]) == CONTENTS


@pytest.mark.parametrize("archive", [b"", b"no archive", gzip.compress(b"wrong", mtime=0), None])
def test_wrong_bytes_of_a_mirror_are_refused(
    archive: bytes | None, mirror: Path, tmp_path: Path
) -> None:
    """And what is in the folder already is neither fetched nor replaced; None: cut off."""
    path = mirror / "b.bin.gz"
    path.write_bytes(path.read_bytes()[:20] if archive is None else archive)
    (tmp_path / "a.bin").write_bytes(CONTENTS["a.bin"])
    (mirror / "a.bin.gz").unlink()
    with pytest.raises(InputError, match=r"^data\.mirrors: expected b\.bin\.gz from a mirror, got"):
        files.read(tmp_path, SHA256, [mirror.as_uri()])
    assert not (tmp_path / "b.bin").exists()


def test_a_folder_that_cannot_be_used_is_refused(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^data\.root: .*Not a directory"):
        files.read(tmp_path / "file" / "data", SHA256, [mirror.as_uri()])
