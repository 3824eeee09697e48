"""Parts and folds of a data set: disjoint, complete, and a function of the split seed."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from seedbed.data.part import Fold
from seedbed.data.positions import Position
from seedbed.data.source import Source
from tests.data.loading import Fetched

N = 23


def ids_of(fold: int, part: str, folds: int = 5, seed: int = 0) -> list[int]:
    dataset = Fold(TensorDataset(torch.arange(N)), part, fold, folds, seed)
    return [int(dataset[index][0]) for index in range(len(dataset))]


@pytest.mark.parametrize("folds", [2, 5, N])
def test_folds_hold_each_sample_out_once(folds: int) -> None:
    """Training and validation samples are the whole data set; sizes differ by one at most."""
    held_out = [ids_of(fold, "validation", folds) for fold in range(folds)]
    assert sorted(i for fold in held_out for i in fold) == list(range(N))
    assert {len(fold) for fold in held_out} <= {N // folds, N // folds + 1}
    for fold in range(folds):
        both = ids_of(fold, "train", folds) + held_out[fold]
        assert sorted(both) == list(range(N))
    assert ids_of(1, "train", folds) != ids_of(1, "train", folds, seed=1)


def test_a_fold_loads_whole_batches_if_the_whole_does() -> None:
    """Its samples by `fetch`; a data set without one has none."""
    whole, plain = Fetched(N), TensorDataset(torch.arange(N))
    whole.sha256 = {"file": "abc"}
    part, other = (Fold(each, "train", fold=0, folds=5, seed=0) for each in (whole, plain))
    batch = Source(part, "train", seed=0)[Position(0, np.array([2, 0]))]
    assert batch.targets.tolist() == part.indices[[2, 0]].tolist()
    assert part.sha256 == {"file": "abc"}
    assert not hasattr(other, "fetch")
    assert not hasattr(other, "sha256")
