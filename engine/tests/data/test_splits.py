"""All splits of a run are built together: a random split in each constructor is one
split."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset, random_split

from seedbed import rng
from seedbed.assemble import sources
from seedbed.config import build
from seedbed.datasets import SPLITS, Fold
from tests.data.loading import settings
from tests.tiny import FEATURES

N = 100
NODES = 40
WHOLE = TensorDataset(torch.arange(N))


def by_random_split() -> list[list[int]]:
    return [part.indices for part in random_split(WHOLE, [0.7, 0.15, 0.15])]  # type: ignore[misc]


def by_numpy() -> list[list[int]]:
    return [part.tolist() for part in np.split(np.random.permutation(N), [70, 85])]


def by_hand() -> list[list[int]]:
    order = torch.randperm(N).tolist()
    return [order[:70], order[70:85], order[85:]]


def of_edges() -> list[list[int]]:
    """Cut the edges of a ring after drawing an edge to leave out, as a split of links
    does."""
    edges = np.stack((np.arange(N), (np.arange(N) + np.random.randint(1, NODES)) % N))
    return [
        edges[0, part].tolist() for part in np.split(np.random.permutation(N), [70, 85])
    ]


class Parts(Subset[Any]):
    """A split of `WHOLE` as most people write it: cut anew, without a seed, for each
    split."""

    def __init__(self, part: str, cut: str) -> None:
        super().__init__(WHOLE, globals()[cut]()[SPLITS.index(part)])


class CutOnce(Subset[Any]):
    """A split that the first constructor draws, and the class keeps."""

    parts: list[list[int]] | None = None

    def __init__(self, part: str) -> None:
        type(self).parts = type(self).parts or by_hand()
        super().__init__(WHOLE, (self.parts or [])[SPLITS.index(part)])


class Fewer(Fold):
    """A subclass of Fold, cut from content that is drawn in the constructor of the
    whole."""


class Drawn(Dataset[tuple[Tensor, int]]):
    """Points that are drawn in the constructor."""

    def __init__(self, samples: int) -> None:
        self.points = torch.randn(samples, FEATURES)

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.points[index], index % 3


def specs(target: str, **arguments: Any) -> dict[str, Any]:
    named = {"_target_": f"{__name__}.{target}", **arguments}
    return {split: {**named, "part": split} for split in SPLITS}


def ids_of(built: dict[str, Any]) -> list[list[int]]:
    return [[int(built[s].dataset[i][0]) for i in range(len(built[s]))] for s in SPLITS]


def built_apart(data: dict[str, Any]) -> list[list[int]]:
    """Return the samples of splits that are each built under a seed of its own."""
    parts = []
    for number, split in enumerate(SPLITS):
        rng.seed_globals(rng.key(0, "data", number))
        dataset = build.build(data[split], split)
        parts.append([int(dataset[i][0]) for i in range(len(dataset))])
    return parts


CUTS: list[Callable[[], Any]] = [by_random_split, by_numpy, by_hand, of_edges]


@pytest.mark.parametrize("cut", [cut.__name__ for cut in CUTS])
def test_a_random_split_in_each_constructor_does_not_leak(cut: str) -> None:
    """The parts are disjoint and cover the whole; another `seeds.data` gives other
    parts.

    Negative control: under a seed for each split they overlap.
    """
    data = specs("Parts", cut=cut)
    parts = ids_of(sources.build_sources(settings(**data)))
    assert sorted(index for part in parts for index in part) == list(range(N))
    assert list(map(len, parts)) == [70, 15, 15]
    made = settings(**data)
    made.seeds.data = 1
    assert ids_of(sources.build_sources(made)) != parts
    apart = built_apart(data)
    assert len(set.union(*map(set, apart))) < N, "negative control"


def test_what_is_kept_in_a_class_is_drawn_by_the_same_split_everywhere() -> None:
    """Training, a second build in one process, and evaluation have the same parts."""
    found = []
    for evaluating in (False, False, True):
        found.append(
            ids_of(sources.build_sources(settings(**specs("CutOnce")), evaluating))
        )
        if len(found) == 2:
            CutOnce.parts = None  # as in another process
    assert found[0] == found[1] == found[2]
    assert sorted(index for part in found[0] for index in part) == list(range(N))


@pytest.mark.parametrize("target", ["seedbed.datasets.Fold", f"{__name__}.Fewer"])
def test_folds_and_their_subclasses_are_cut_from_one_data_set(target: str) -> None:
    """Also if its content is drawn: the parts share no sample, and have all of them."""
    fold = {"_target_": target, "fold": 0, "folds": 3, "seed": 0}
    fold |= {"dataset": {"_target_": f"{__name__}.Drawn", "samples": 12}}
    made = settings(
        train={**fold, "part": "train"}, validation={**fold, "part": "validation"}
    )
    built = sources.build_sources(made)
    a, b = (built[split].dataset for split in ("train", "validation"))
    assert torch.equal(a.dataset.points, b.dataset.points)
    assert sorted([*a.indices, *b.indices]) == list(range(12))


def test_a_missing_test_set_is_the_validation_set() -> None:
    made = settings(**{**specs("Parts", cut="by_hand"), "test": None})
    built = sources.build_sources(made)
    assert list(built) == list(SPLITS)
    assert built["test"] is built["validation"]


def test_training_samples_are_evaluated_as_validation_samples_are() -> None:
    """They draw the same numbers in every epoch, and those of no training epoch."""
    spec = {"_target_": "tests.tiny.data.Noisy", "samples": 8}
    made = settings(train=spec, validation=spec)
    evaluated, trained = (
        sources.build_sources(made, evaluating)["train"] for evaluating in (True, False)
    )
    place = sources.EvaluationPositions(8, 8)[0]
    first, later = (evaluated[place._replace(epoch=epoch)].inputs for epoch in (0, 3))
    assert torch.equal(first, later)
    assert not torch.equal(first, trained[place].inputs)
