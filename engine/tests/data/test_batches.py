"""Batches of any make: loaded alike by any workers, seen by fingerprints, moved; and folds."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import Dataset, TensorDataset

from seedbed.data.part import Fold
from seedbed.data.positions import Position, Shuffled
from seedbed.data.source import Batch, Source
from seedbed.data.tensors import move, tensors_of
from seedbed.errors import InputError
from seedbed.worker.parts import build_sources
from tests.data.loading import Fetched, hashes, loaded, settings

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
META = torch.device("meta")  # another device than the CPU, on every machine
ORDER = Shuffled(12, 4, 0)


class Uneven(Dataset[Any]):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(1 + index % 4, 3), torch.randn(2)


@dataclass(frozen=True, slots=True)
class Padded:
    """What a user's collate function may return."""

    values: Tensor
    lengths: tuple[int, ...]
    mask: Tensor


class Encoding(UserDict[str, Any]):
    """A mapping with a method `to`, as tokenizers return it."""

    def to(self, device: torch.device) -> "Encoding":
        return Encoding({name: tensor.to(device) for name, tensor in self.items()})


Sequences = list[Tensor]


def padded(sequences: Sequences) -> Padded:
    values = pad_sequence(sequences, batch_first=True)
    return Padded(values, tuple(map(len, sequences)), values != 0)


# What makes the inputs of a batch, and how many tensors they hold.
MAKES: dict[str, tuple[Callable[[Sequences], Any], int]] = {
    "packed sequence": (lambda s: pack_sequence(s, enforce_sorted=False), 4),
    "dataclass": (padded, 2),
    "mapping with to": (lambda s: Encoding(ids=padded(s).values), 1),
    "jagged": (lambda s: torch.nested.nested_tensor(s, layout=torch.jagged), 2),
}


def batches(make: str, workers: int = 0) -> list[Batch]:
    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Any, Tensor]:
        sequences, targets = zip(*samples, strict=True)
        return MAKES[make][0](list(sequences)), torch.stack(targets)

    return loaded(Source(Uneven(), "train", 0, collate), ORDER, 3, workers)


@pytest.mark.parametrize("make", MAKES)
def test_no_worker_changes_a_bit_and_each_tensor_is_seen(make: str) -> None:
    """A batch holds all its tensors in order; another value in any is another fingerprint."""
    here, there = batches(make), batches(make, 2)
    assert hashes(there) == hashes(here)
    assert type(there[0].inputs) is type(here[0].inputs)
    inputs = here[0].inputs
    assert len(tensors_of(inputs)) == MAKES[make][1]
    for tensor in tensors_of(inputs):
        before = hashes([inputs])
        flat = tensor.detach().view(-1)
        flat[0] = not flat[0] if tensor.dtype is torch.bool else flat[0] + 1
        assert hashes([inputs]) != before


def test_a_batch_moves_by_its_own_method() -> None:
    """What has a method `to` decides what is moved; of all else every tensor is.

    A packed sequence leaves its batch sizes on the CPU.
    """
    sequence = batches("packed sequence")[0].inputs
    moved = move({"a": [sequence], "b": torch.zeros(1)}, META)
    assert (moved["a"][0].data.is_meta, moved["b"].is_meta) == (True, True)
    assert moved["a"][0].batch_sizes.is_cpu
    assert torch.equal(moved["a"][0].batch_sizes, sequence.batch_sizes)
    encoding = move(batches("mapping with to")[0].inputs, META)
    assert isinstance(encoding, Encoding)
    assert encoding["ids"].is_meta
    assert move(batches("dataclass")[0].inputs, META).mask.is_meta


def is_even(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    images, classes = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(classes) % 2


def built(**data: Any) -> Any:
    spec = {"_target_": "tests.zoo.parts.Samples", "samples": 12, "shape": [1, 4, 4]}
    return build_sources(settings(**{"train": spec, "validation": spec, **data}))


def test_both_parts_are_of_one_data_set() -> None:
    """Also where it draws its samples: as two data sets, training and validation have others."""
    drawn = {"_target_": "tests.data.loading.Drawn", "samples": 12}
    fold = {"_target_": "seedbed.data.part.Fold", "fold": 0, "folds": 3, "seed": 0}
    fold |= {"dataset": drawn}
    parts = built(train={**fold, "part": "train"}, validation={**fold, "part": "validation"})
    a, b = (parts[split].dataset.dataset.table for split in ("train", "validation"))
    assert torch.equal(a, b)
    plain = built(train=drawn, validation=drawn)
    a, b = (plain[split].dataset.table for split in ("train", "validation"))
    assert not torch.equal(a, b), "negative control"


def test_mixing_is_for_training_alone() -> None:
    """Training gets mixed images and soft targets, with any workers; evaluation has its collate."""
    sources = built(training_collate="tests.zoo.parts.mix", collate=f"{__name__}.is_even")
    mixed = loaded(sources["train"], ORDER, 3)
    assert hashes(loaded(sources["train"], ORDER, 3, workers=2)) == hashes(mixed)
    assert mixed[0].targets.shape == (4, 4)
    for split in ("validation", "test"):
        [batch] = loaded(sources[split], ORDER, 1)
        assert batch.targets.tolist() == (batch.ids % 2).tolist()


def test_a_collate_beside_fetch_is_refused() -> None:
    """It would be ignored: such a data set makes its batches itself."""
    whole = {"_target_": "tests.data.loading.Fetched", "samples": 12}
    with pytest.raises(InputError, match=r"data\.training_collate: expected .* got Fetched"):
        built(train=whole, training_collate=f"{__name__}.is_even")


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
