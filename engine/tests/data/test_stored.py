"""PyTorch's own data sets of tensors are gathered by index, with the bits of sample by
sample."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    Subset,
    TensorDataset,
    default_collate,
)

from seedbed import rng
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Source
from seedbed.pipeline.stored import gathered
from tests import tiny
from tests.run.runs import SHORT
from tests.running import train
from tests.ways import differences

SAMPLES = 12
IDS = np.array([3, 0, 11, 7, 7, 2])
NAN = torch.tensor([0x7FC00001, -0x80000000], dtype=torch.int32).view(torch.float32)


def table(*shape: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Return samples of a shape, with NaN and -0.0 among their floats, and classes."""
    values = torch.randn(SAMPLES, *shape)
    flat = values.view(-1)
    flat[: len(NAN)] = NAN[: len(flat)]
    return TensorDataset(values.to(dtype), torch.arange(SAMPLES) % 3)


class Inherited(TensorDataset):
    """A data set of the user's, who leaves reading to PyTorch."""

    def __init__(self, samples: int, name: str) -> None:
        super().__init__(torch.randn(samples, 2), torch.arange(samples))
        self.name = name

    def plot(self) -> str:
        return self.name


class Named(Subset[Any]):
    """A part with a name."""

    name = "part"


TABLES = {
    "vectors": table(4),
    "numbers": table(),
    "nothing": table(0),
    "images": table(3, 4, 5),
    "gray images": table(1, 4, 5),
    "pixels": table(3, 1, 1),
    "videos": table(2, 3, 4, 5),
    **{
        str(dtype): table(4, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.bool, torch.int8)
    },
    "one tensor": TensorDataset(torch.randn(SAMPLES, 2)),
    "a part": TensorDataset(torch.randn(SAMPLES + 5, 2)[5:], torch.arange(SAMPLES)),
    "a subset": Subset(table(4), [*range(11, -1, -1)]),
    "a subset by array": Subset(table(4), np.arange(SAMPLES)[::-1]),
    "a subset by tensor": Subset(table(4), torch.arange(SAMPLES)),  # type: ignore[arg-type]
    "a subset of a subset": Subset(Subset(table(4), range(12)), [*range(12)]),
    "a class that inherits": Inherited(SAMPLES, "mine"),
    "a subset that inherits": Named(Inherited(SAMPLES, "mine"), [*range(SAMPLES)]),
    "several": ConcatDataset([Subset(table(4), [5, 6, 1, 2]), table(4), table(4)]),
    "several of one": ConcatDataset([table(4), table(4)]),
}


def facts(batch: Any) -> list[Any]:
    """Return what kernels may depend on: bits, dtypes, shapes, strides, alignment."""
    assert type(batch) is list
    return [
        (
            each.contiguous().view(-1).view(torch.uint8).tolist(),
            each.dtype,
            each.shape,
            each.stride(),
            each.data_ptr() % 64,
        )
        for each in batch
    ]


@pytest.mark.parametrize("name", TABLES)
def test_what_is_gathered_is_what_pytorch_collates(name: str) -> None:
    """Also of one sample. Negative control: other samples."""
    dataset = TABLES[name]
    for ids in (IDS, IDS[:1]):
        found = gathered(dataset, ids)
        assert found is not None
        expected = default_collate([dataset[index] for index in ids.tolist()])
        assert facts(found) == facts(expected)
    if name != "nothing":
        other = gathered(dataset, IDS[::-1].copy())
        assert facts(gathered(dataset, IDS)) != facts(other)


class Subclass(TensorDataset):
    """A data set of the user's, whose samples draw from all global generators."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        noise = torch.rand(()) + float(np.random.random()) + random.random()
        inputs, target = super().__getitem__(index)
        return inputs + noise, target


class Several(TensorDataset):
    """A data set of the user's that reads several samples at once."""

    def __getitems__(self, indices: list[int]) -> list[tuple[Tensor, ...]]:
        return [self[index] for index in indices]

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        inputs, target = super().__getitem__(index)
        return inputs + torch.rand(()), target


class Computed(TensorDataset):
    """A data set of the user's whose tensors are made anew when they are read."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return SAMPLES

    @property
    def tensors(self) -> Any:
        return torch.rand(SAMPLES, 2), torch.arange(SAMPLES)


class Looked(TensorDataset):
    """A data set of the user's that draws when its attributes are read."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return [each + torch.rand(()) for each in value] if name == "tensors" else value


class Chooser(list[int]):
    """Indices that are drawn when they are read."""

    def __getitem__(self, place: Any) -> Any:
        return int(torch.randint(SAMPLES, ()))


OWN = Subclass(*table(4).tensors)
OTHERS: dict[str, Any] = {
    "a subclass": OWN,
    "a subset of it": Subset(OWN, [*range(SAMPLES)]),
    "samples read together": Several(*table(4).tensors),
    "tensors by a property": Computed(),
    "attributes by a method": Looked(torch.randn(SAMPLES, 4), torch.randn(SAMPLES)),
    "it among others": ConcatDataset([Subset(table(4), [0, 1]), OWN]),
    "indices of the user's": Subset(table(4), Chooser(range(SAMPLES))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_samples_that_may_draw_have_a_seed_each(name: str) -> None:
    """A sample's draws do not depend on those before it. Negative control: unseeded."""
    dataset = OTHERS[name]
    assert gathered(dataset, IDS) is None

    def of_last(ids: Any, **how: Any) -> Any:
        rng.seed_globals(0)
        source = Source(dataset, "train", 0, **how)
        return source[Position(0, ids)].inputs[-1].tolist()

    assert of_last(IDS[:3]) == of_last(IDS[1:3])
    assert of_last(IDS[:3], seeded=False) != of_last(IDS[1:3], seeded=False)


class Watching(Tensor):
    """A class of the user's, whose rows may be computed."""


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, SAMPLES).t(),
        torch.randn(SAMPLES, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(SAMPLES, 1).expand(-1, 4),
        nn.Parameter(torch.randn(SAMPLES, 4)),
        torch.randn(SAMPLES, 4).as_subclass(Watching),
        torch.randn(SAMPLES, 4, dtype=torch.complex64),
        torch.randn(SAMPLES, 4).to_sparse(),
    ],
)
def test_tensors_whose_rows_are_laid_out_otherwise_are_left(tensor: Tensor) -> None:
    """Negative control: a plain copy."""
    target = torch.arange(SAMPLES)
    assert gathered(TensorDataset(tensor, target), IDS) is None
    plain = torch.randn(SAMPLES, 4)
    assert gathered(TensorDataset(plain, target), IDS) is not None


@pytest.mark.parametrize(
    "dataset",
    [
        Subset(table(4), [-1] * SAMPLES),
        Subset(table(4), [SAMPLES] * SAMPLES),
        Subset(table(4), [0.0] * SAMPLES),  # type: ignore[list-item]
        Subset(table(4), [True] * SAMPLES),
        Subset(table(4), [True, 5, *[1] * SAMPLES]),
        Subset(table(4), [[0]] * SAMPLES),  # type: ignore[list-item]
        Subset(table(4), [0]),
        ConcatDataset([Subset(table(4), [0, 1]), table(3), table(4)]),
        ConcatDataset([Subset(table(4), [0]), table(4, dtype=torch.float16)]),
    ],
)
def test_odd_indices_and_shapes_are_left_to_pytorch(dataset: Any) -> None:
    """Which counts from the end, refuses them in its words, or promotes dtypes."""
    assert gathered(dataset, IDS) is None


def test_a_patched_class_is_not_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its samples are those of the patch. Negative control: before it."""
    dataset = table(4)
    assert gathered(dataset, IDS) is not None

    def doubled(self: TensorDataset, index: int) -> Any:
        return tuple(2 * tensor[index] for tensor in self.tensors)

    monkeypatch.setattr(TensorDataset, "__getitem__", doubled)
    assert gathered(dataset, IDS) is None
    assert gathered(Subset(dataset, range(SAMPLES)), IDS) is None


class Wrapped(Dataset[Any]):
    """Another data set, sample by sample."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


@pytest.mark.parametrize("repeats", [None, np.array([1, 0, 0, 0, 1, 0])])
@pytest.mark.parametrize("name", ["images", "several"])
def test_generators_are_left_as_by_samples(name: str, repeats: Any) -> None:
    """Whoever draws after loading has the same numbers. Negative control: an epoch."""

    def after(dataset: Any, epoch: int = 0) -> int:
        Source(dataset, "train", 5)[Position(epoch, IDS, repeats)]
        return rng.state()

    assert after(TABLES[name]) == after(Wrapped(TABLES[name]))
    assert after(TABLES[name]) != after(TABLES[name], epoch=1)


def whole(samples: int) -> TensorDataset:
    """Return points and their classes, drawn when they are built."""
    points = torch.randn(samples, tiny.FEATURES)
    return TensorDataset(points, points[:, : tiny.CLASSES].argmax(1))


def wrapped(samples: int) -> Wrapped:
    return Wrapped(whole(samples))


def scaled(samples: int) -> TensorDataset:
    dataset = whole(samples)
    dataset.tensors[0].mul_(1.5)
    return dataset


@pytest.mark.parametrize("more", [(), ("data.num_workers=2",), ("trainer.shards=2",)])
def test_a_run_has_the_bits_of_one_sample_by_sample(
    more: tuple[str, ...], tmp_path: Path
) -> None:
    """Negative control: other samples."""

    def run(kind: str, *words: str) -> Path:
        # All splits are drawn alike, so there is one configuration for them.
        chosen = {"_target_": f"{__name__}.{kind}", "samples": 48}
        data = tiny.DATA | {"train": chosen, "validation": chosen, "test": None}
        splits = ("data.compare_splits=false", *tiny.overrides(data=data))
        done = train(tmp_path / kind, *SHORT, *splits, *words)
        assert done.returncode == 0, done.stderr
        return tmp_path / kind

    apart = run("whole", *more)
    assert differences(run("wrapped", *more), apart) == []
    assert differences(run("scaled", *more), apart) != []
