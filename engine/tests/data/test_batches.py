"""Batches of any make: loaded alike by any number of workers, seen by fingerprints, and moved."""

from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import Dataset, default_collate
from torchvision.transforms.v2 import MixUp

from seedbed.data.positions import Shuffled, positions
from seedbed.data.source import Batch, Source
from seedbed.data.tensors import move, tensors_of
from seedbed.data.workers import Loading, load
from seedbed.errors import InputError
from seedbed.worker.parts import build_sources
from tests.data.loading import PRESET, hashes, settings

pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
META = torch.device("meta")  # another device than the CPU, on every machine


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


class Graph:
    """An object with a method `to`, and a tensor that stays on the CPU."""

    def __init__(self, nodes: Tensor, count: Tensor) -> None:
        self.nodes, self.count = nodes, count

    def to(self, device: torch.device) -> "Graph":
        return Graph(self.nodes.to(device), self.count)


class Encoding(UserDict[str, Any]):
    """A mapping with a method `to`, as tokenizers return it."""

    def to(self, device: torch.device) -> "Encoding":
        return Encoding({name: tensor.to(device) for name, tensor in self.items()})


Samples = list[tuple[Tensor, Tensor]]


def targets(samples: Samples) -> Tensor:
    return torch.stack([target for _, target in samples])


def padded(samples: Samples) -> tuple[Padded, Tensor]:
    sequences = [sequence for sequence, _ in samples]
    values = nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    return Padded(values, tuple(map(len, sequences)), values != 0), targets(samples)


def packed(samples: Samples) -> tuple[PackedSequence, Tensor]:
    return pack_sequence([s for s, _ in samples], enforce_sorted=False), targets(samples)


def graph(samples: Samples) -> tuple[Graph, Tensor]:
    nodes = torch.cat([sequence for sequence, _ in samples])
    return Graph(nodes, torch.tensor(len(nodes))), targets(samples)


def encoding(samples: Samples) -> tuple[Encoding, Tensor]:
    return Encoding(ids=padded(samples)[0].values), targets(samples)


def jagged(samples: Samples) -> tuple[Tensor, Tensor]:
    sequences = [sequence for sequence, _ in samples]
    return torch.nested.nested_tensor(sequences, layout=torch.jagged), targets(samples)


# What makes the batch, how many tensors its inputs hold, and which of them is random.
MAKES: dict[str, tuple[Callable[[Samples], Any], int]] = {
    "packed sequence": (packed, 4),
    "dataclass": (padded, 2),
    "object with to": (graph, 2),
    "mapping with to": (encoding, 1),
    "jagged": (jagged, 2),
}


def batches(collate: Callable[[Samples], Any], workers: int) -> list[Batch]:
    source = Source(Uneven(), "train", 0, collate)
    places = positions(Shuffled(12, 4, 0), 0, 3)
    return list(load(source, places, Loading(workers), PRESET))


@pytest.mark.parametrize("make", MAKES)
def test_no_worker_changes_a_bit_and_each_tensor_is_seen(make: str) -> None:
    """A batch holds all its tensors in order; another value in any is another fingerprint."""
    collate, count = MAKES[make]
    here, there = batches(collate, 0), batches(collate, 2)
    assert hashes(there) == hashes(here)
    assert type(there[0].inputs) is type(here[0].inputs)
    inputs = here[0].inputs
    assert len(tensors_of(inputs)) == count
    for tensor in tensors_of(inputs):
        before = hashes([inputs])
        flat = tensor.detach().view(-1)
        flat[0] = not flat[0] if tensor.dtype is torch.bool else flat[0] + 1
        assert hashes([inputs]) != before


def test_a_batch_moves_by_its_own_method() -> None:
    """What has a method `to` decides what is moved; of all else every tensor is."""
    sequence = batches(packed, 0)[0].inputs
    moved = move({"a": [sequence], "b": torch.zeros(1)}, META)
    assert (moved["a"][0].data.is_meta, moved["b"].is_meta) == (True, True)
    assert moved["a"][0].batch_sizes.is_cpu
    assert torch.equal(moved["a"][0].batch_sizes, sequence.batch_sizes)

    nodes = move(batches(graph, 0)[0].inputs, META)
    assert (nodes.nodes.is_meta, nodes.count.is_cpu) == (True, True)
    assert move(batches(encoding, 0)[0].inputs, META)["ids"].is_meta


class Squares(Dataset[Any]):
    """Images of four classes."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((1, 4, 4), float(index)), index % 4


class Drawn(Dataset[Any]):
    """Draws its samples when it is built."""

    def __init__(self) -> None:
        self.samples = torch.randn(12, 3)

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.samples[index], 0


def is_even(samples: Samples) -> tuple[Tensor, Tensor]:
    images, classes = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(classes) % 2


def mixed(samples: Samples) -> tuple[Tensor, Tensor]:
    return MixUp(num_classes=4, alpha=0.5)(*default_collate(samples))


def built(**data: Any) -> Any:
    spec = {"_target_": f"{__name__}.Squares"}
    return build_sources(settings(**{"train": spec, "validation": spec, **data}))


def first_batch(source: Source, workers: int = 0) -> Batch:
    places = positions(Shuffled(12, 4, 0), 0, 1)
    return next(load(source, places, Loading(workers), PRESET))


def test_both_parts_are_of_one_data_set() -> None:
    """Also where it draws its samples: as two data sets, training and validation have others."""
    drawn = {"_target_": f"{__name__}.Drawn"}
    fold = {"_target_": "seedbed.data.part.Fold", "fold": 0, "folds": 3, "seed": 0}
    parts, plain = (
        built(train={**spec, **first}, validation={**spec, **second})
        for spec, first, second in (
            ({**fold, "dataset": drawn}, {"part": "train"}, {"part": "validation"}),
            (drawn, {}, {}),
        )
    )
    assert torch.equal(
        parts.train.dataset.dataset.samples, parts.validation.dataset.dataset.samples
    )
    assert not torch.equal(plain.train.dataset.samples, plain.validation.dataset.samples)


def test_mixing_is_for_training_alone() -> None:
    """Training gets mixed images and soft targets, with any workers; evaluation has its collate."""
    sources = built(training_collate=f"{__name__}.mixed", collate=f"{__name__}.is_even")
    mixed, there = first_batch(sources.train), first_batch(sources.train, workers=2)
    assert hashes([there]) == hashes([mixed])
    assert mixed.targets.shape == (4, 4)
    for source in (sources.validation, sources.test):
        assert first_batch(source).targets.tolist() == (first_batch(source).ids % 2).tolist()


def test_a_collate_beside_fetch_is_refused() -> None:
    """It would be ignored: such a data set makes its batches itself."""
    whole = {"_target_": "tests.data.test_part.Whole"}
    with pytest.raises(InputError, match=r"data\.training_collate: expected .* got Whole"):
        built(train=whole, training_collate=f"{__name__}.is_even")
