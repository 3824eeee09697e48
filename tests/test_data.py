"""The example data sets: what they hold, that no sample is in two splits, what a seed decides."""

from pathlib import Path

import numpy as np
import pytest
import torch

from project.data import mnist5k
from project.data.adding import AddingProblem
from project.data.augment import ShiftAndRotate
from project.data.images import ImageDataset
from project.data.mnist5k import MNIST5k
from project.data.sums import NO_TARGET, PADDING, Sums, Text, decode, encode, pad
from seedbed import rng
from seedbed.names import SPLITS


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
    """4,000, 500 and 500 digits, all of the file; 500 of each class; the seed splits them."""
    parts = [MNIST5k(split, seed=0) for split in SPLITS]
    assert [len(part) for part in parts] == [4000, 500, 500]
    assert len(set.union(*map(images_of, parts))) == 5000
    assert np.array_equal(np.bincount(mnist5k.read()[1]), np.full(10, 500))
    assert images_of(MNIST5k("test", seed=0)) == images_of(parts[2])
    assert images_of(MNIST5k("test", seed=1)) != images_of(parts[2])


def test_only_training_augments() -> None:
    """Draws change images; without them, fetching gives what indexing gives, again and again."""
    dataset, ids = MNIST5k("train", seed=0, augment=ShiftAndRotate(2, 10)), np.array([5, 3, 999])
    plain, targets = dataset.fetch(ids, None)
    changed, same_targets = dataset.fetch(ids, rng.Draws(1, ids))
    assert not torch.equal(changed, plain)
    assert torch.equal(targets, same_targets)
    for place, sample_id in enumerate(ids):
        image, target = dataset[int(sample_id)]
        assert torch.equal(image, plain[place])
        assert target == targets[place]


# The adding problem


def test_the_target_is_the_sum_of_the_marked_values() -> None:
    """A marker in each half, at each step sometimes; predicting 1 gives an error of 1/6."""
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
    """The same alone, in any batch, by index, and in a larger data set; otherwise another one."""
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
    assert set.union(*splits) == {f"{a}+{b}={a + b}" for a in range(10) for b in range(10)}
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
    assert decode(torch.cat([targets for _, targets in samples])) == "bcdefghija" * 9 + "bcdefghijk"
