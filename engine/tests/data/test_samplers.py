"""Samplers, which must be pure functions of epoch and seed; folds, and sources of each
split."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from seedbed.assemble import sources
from seedbed.datasets import Fold, values_of
from seedbed.errors import InputError
from seedbed.pipeline.positions import Position, Shuffled
from seedbed.pipeline.samplers import Sampled
from seedbed.pipeline.source import Source
from seedbed.testing import Few
from tests import pages
from tests.data.loading import Fetched, hashes, loaded, settings
from tests.running import TEMPLATE

N = 40
CALLS = itertools.count()
_PAGE = pages.files((TEMPLATE / "docs/examples/samplers.md").read_text())
RECIPES: dict[str, Any] = {}
exec(_PAGE["src/project/samplers.py"], RECIPES)


class Uneven(Dataset[tuple[Tensor, int]]):
    """Sums of noise sequences of different lengths."""

    lengths = tuple(1 + i % 7 for i in range(N))

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(7)[: self.lengths[index]].sum(), index % 2

    def labels(self) -> list[int]:
        return [min(i % 8, 1) for i in range(N)]

    def tags(self) -> list[list[int]]:
        """Return two labels of each sample."""
        return [[i, i % 2] for i in range(N)]


def given(of: Callable[[int], Any]) -> Any:
    """Return a sampler whose batches are a function of the epoch."""
    return SimpleNamespace(batches=lambda epoch, _n, _rng: of(epoch))


READY = {
    "balanced": lambda: RECIPES["Balanced"](Uneven(), 6, "labels"),
    "buckets": lambda: RECIPES["Buckets"](Uneven(), 21, "lengths", width=2),
}


def sampled(sampler: Any, seed: int = 0, multiple_of: int = 1) -> Sampled:
    return Sampled(sampler, N, seed, multiple_of)


def ids_of(order: Sampled, epoch: int) -> list[list[int]]:
    places = [order.position(epoch, index) for index in range(order.steps_per_epoch)]
    return [place.ids.tolist() for place in places]


def test_values_are_those_of_the_samples() -> None:
    """An attribute or method of the data set, or of a part's data set, has them, one
    per sample."""
    part = Subset(Uneven(), [3, 1])
    assert values_of(part, "lengths").tolist() == [4, 2]
    few = Few(Uneven(), 3)  # which passes on the attributes of the whole data set
    assert few.lengths == Uneven.lengths
    assert values_of(few, "lengths").tolist() == [1, 2, 3]
    assert values_of(few, "labels").tolist() == Uneven().labels()[:3]
    assert values_of(Uneven(), "labels").tolist() == Uneven().labels()
    assert values_of(part, "tags").tolist() == [[3, 1], [1, 1]]
    with pytest.raises(
        InputError, match=r"data\.sampler: expected numbers for each of 40"
    ):
        values_of(Uneven(), "nothing")


def test_the_recipes_do_what_they_say() -> None:
    """Both classes are drawn equally often, although one has seven times as many
    samples.

    In buckets, each sample is drawn once, and padded batches keep to their size limit.
    """
    order = sampled(READY["balanced"]())
    taken = np.concatenate(
        [ids for epoch in range(200) for ids in ids_of(order, epoch)]
    )
    assert abs(np.mean(taken % 8 == 0) - 0.5) < 0.02
    buckets = sampled(RECIPES["Buckets"](Uneven(), 28, "lengths"))
    buckets.position(0, 0).ids.fill(-1)  # as user code may do
    batches = ids_of(buckets, 0)
    assert sorted(i for batch in batches for i in batch) == list(range(N))
    assert len({len(batch) for batch in batches}) > 1
    for batch in batches:
        longest = max(Uneven.lengths[i] for i in batch)
        assert len(batch) * longest <= 28
        assert longest - min(Uneven.lengths[i] for i in batch) < 7, (
            "negative control: not at random"
        )


@pytest.mark.parametrize("data", [Uneven(), Fetched(N)])
@pytest.mark.parametrize("name", READY)
def test_workers_and_a_resume_change_no_batch(name: str, data: Dataset[Any]) -> None:
    """Batches of varying size, with repeats, are the same with 2 loader workers and
    from step 5."""
    source = Source(data, "train", seed=0)
    order = sampled(READY[name]())
    last = 2 * order.steps_per_epoch + 2
    here = hashes(loaded(source, order, last))
    assert hashes(loaded(source, order, last, workers=2)) == here
    again = sampled(READY[name]())
    other = sampled(READY[name](), seed=1)
    assert hashes(loaded(source, again, last, workers=2, first=5)) == here[5:]
    assert hashes(loaded(source, other, last)) != here, "negative control"


@pytest.mark.parametrize("data", [Uneven(), Fetched(N)])
def test_a_sample_that_comes_again_is_drawn_anew(data: Dataset[Any]) -> None:
    """Each repeat in a batch or epoch has new draws; the first has those of a sample
    drawn once."""
    order = sampled(given(lambda _: [[3, 3, 5], [3, 6, 5]]))
    source = Source(data, "train", seed=0)
    first, second = (source[order.position(0, index)].inputs for index in (0, 1))
    threes = [first[0], first[1], second[0]]
    assert len({tuple(each.reshape(-1).tolist()) for each in threes}) == 3
    assert not torch.equal(first[2], second[2])
    alone = source[Position(0, np.array([3]))].inputs[0]
    assert torch.equal(alone, threes[0])
    # Draws do not depend on the other samples of a batch, nor on its division into
    # shards.
    assert torch.equal(source[order.position(0, 0).cut(1, 2)].inputs[0], threes[1])


@pytest.mark.parametrize(
    ("batches", "line"),
    [
        (lambda _: [[next(CALLS), 1], [2, 3]], "others from SimpleNamespace"),
        (
            lambda epoch: [[0, 1]] * (2 + max(epoch - 1, 0)),
            "in every epoch, got 3 in epoch 2",
        ),
        # Not a multiple of the shards, -1 for the last sample, too large, a mask, no
        # ids.
        *(
            (lambda _, ids=ids: [[0, 1], ids], "expected batches of ids from 0 to 39")
            for ids in ([0, 1, 2], [-1, 0], [0, N], [True, False], [])
        ),
    ],
)
def test_a_sampler_that_is_not_pure_or_gives_other_batches_is_refused(
    batches: Callable[[int], Any], line: str
) -> None:
    """If possible before the first step. Validation and schedules count in epochs of
    equal size."""
    with pytest.raises(InputError, match=rf"^data\.sampler: .*{line}"):
        sampled(given(batches), multiple_of=2).position(2, 0)


class ByLabels(torch.utils.data.WeightedRandomSampler):
    """Weights that are read from the data set it is given, as in plain PyTorch."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset.labels(), 20)


def test_a_sampler_that_reads_past_a_part_learns_what_does_not() -> None:
    """`make test` passes some samples, with the attributes of the whole data set."""
    spec = {"_target_": f"{__name__}.ByLabels"}
    source = Source(Few(Uneven(), 3), "train", seed=0)
    with pytest.raises(
        InputError,
        match=r"ids from 0 to 2, got \d+ in epoch 0 from ByLabels; .*values_of",
    ):
        sources.build_order(settings(sampler=spec, batch_size=2), source)


@pytest.mark.parametrize(("key", "value"), [("streams", 4), ("batch_size", 41)])
def test_what_gives_no_order_is_refused(key: str, value: int) -> None:
    with pytest.raises(InputError, match=rf"^data\.{key}: expected"):
        sources.build_order(settings(**{key: value}), Source(Uneven(), "train", seed=0))


class OfRanks(torch.utils.data.Sampler[int]):
    """As DistributedSampler does it: shuffles by the epoch that it is told."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        own = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(len(self.dataset), generator=own))


class Tensors:
    """Batches of tensors, as some packages have them; the last one is smaller."""

    def __init__(self, data: Any, seed: int = 0) -> None:
        self.ids = torch.arange(len(data))

    def __iter__(self) -> Any:
        return iter(self.ids[torch.randperm(len(self.ids))].split(6))


def adapted(target: str, shards: int = 1, seed: int = 0, **arguments: Any) -> Sampled:
    spec = {"_target_": target, **arguments}
    made = settings(sampler=spec, batch_size=6)
    made.trainer.shards = shards
    made.seeds.order = seed
    return sources.build_order(made, Source(Uneven(), "train", seed=0))  # type: ignore[return-value]


OF_TORCH = "torch.utils.data"
SHUFFLED = {"_target_": f"{OF_TORCH}.RandomSampler"}
SAMPLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "weighted": (f"{OF_TORCH}.WeightedRandomSampler", {"weights": [1.0] * 39 + [9.0]}),
    "random": (f"{OF_TORCH}.RandomSampler", {"replacement": True}),
    "subset": (f"{OF_TORCH}.SubsetRandomSampler", {"indices": [*range(13)]}),
    "batches": (f"{OF_TORCH}.BatchSampler", {"sampler": SHUFFLED, "batch_size": 6}),
    "of ranks": (f"{__name__}.OfRanks", {}),
    "tensors": (f"{__name__}.Tensors", {}),
}
SAMPLERS["weighted"][1]["num_samples"] = 20
SAMPLERS["batches"][1]["drop_last"] = False
STEPS = {
    "weighted": 3,
    "random": 6,
    "subset": 2,
    "batches": 7,
    "of ranks": 6,
    "tensors": 7,
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_of_torch_are_functions_of_seed_and_epoch(name: str) -> None:
    """In any order of epochs, and anew in each. Negative control: other seeds."""
    target, arguments = SAMPLERS[name]
    order = adapted(target, **arguments)
    assert order.steps_per_epoch == STEPS[name], "an incomplete batch of ids is dropped"
    epochs = [ids_of(order, epoch) for epoch in range(4)]
    torch.randn(3)
    assert [ids_of(adapted(target, **arguments), epoch) for epoch in (3, 1)] == epochs[
        :0:-2
    ]
    assert len({repr(each) for each in epochs}) == 4
    assert {len(ids) for ids in epochs[0]} <= {6, 40 % 6}
    other = ids_of(adapted(target, seed=1, **arguments), 0)
    assert (other == epochs[0]) is (name == "of ranks"), "which takes no seed of ours"


def test_the_order_of_a_sequential_sampler_is_kept() -> None:
    """An incomplete batch of a batch sampler is one."""
    sequential = {"_target_": f"{OF_TORCH}.SequentialSampler"}
    order = adapted(
        f"{OF_TORCH}.BatchSampler", sampler=sequential, batch_size=16, drop_last=False
    )
    assert ids_of(order, 5) == [[*range(16)], [*range(16, 32)], [*range(32, 40)]]


class Counting(Tensors):
    def __iter__(self) -> Any:
        self.ids = self.ids.roll(1)
        return iter(self.ids.split(6))


class Generating(Tensors):
    def __init__(self, data: Any) -> None:
        super().__init__(data)
        self.rng = np.random.default_rng(0)

    def __iter__(self) -> Any:
        return iter(self.rng.permutation(self.ids))


class Unseeded(Tensors):
    def __iter__(self) -> Any:
        return iter(np.random.default_rng().permutation(self.ids))


@pytest.mark.parametrize(
    ("target", "arguments", "line"),
    [
        *(
            (f"{__name__}.{name}", {}, "expected the same epoch each time that " + name)
            for name in ("Counting", "Generating", "Unseeded")
        ),
        (
            f"{OF_TORCH}.RandomSampler",
            {"generator": {"_target_": "torch.Generator"}},
            "equal see",
        ),
        (
            f"{OF_TORCH}.SubsetRandomSampler",
            {"indices": [1, 2]},
            "expected some batches .* got 0",
        ),
        (
            f"{OF_TORCH}.SubsetRandomSampler",
            {"indices": [*range(36, 46)]},
            "ids from 0 to 39",
        ),
        ("types.SimpleNamespace", {}, "expected batches.* or ids, got SimpleNamespace"),
    ],
)
def test_a_sampler_of_torch_that_keeps_state_is_refused(
    target: str, arguments: dict[str, Any], line: str
) -> None:
    """In one line: a counter, generators of its own. Built anew, it would repeat an
    epoch."""
    with pytest.raises(InputError, match=rf"^data\.sampler: .*{line}"):
        adapted(target, **arguments)


def is_even(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    images, classes = zip(*samples, strict=True)
    return torch.stack(images), torch.tensor(classes) % 2


def built(**data: Any) -> Any:
    spec = {"_target_": "tests.zoo.parts.Samples", "samples": 12, "shape": [1, 4, 4]}
    return sources.build_sources(
        settings(**{"train": spec, "validation": spec, **data})
    )


def test_mixing_is_for_training_alone() -> None:
    """Training has mixed images and soft targets, also by loader workers; evaluation,
    `collate`."""
    sources = built(
        training_collate="tests.zoo.parts.mix", collate=f"{__name__}.is_even"
    )
    order = Shuffled(12, 4, 0)
    mixed = loaded(sources["train"], order, 3)
    assert hashes(loaded(sources["train"], order, 3, workers=2)) == hashes(mixed)
    assert mixed[0].targets.shape == (4, 4)
    for split in ("validation", "test"):
        [batch] = loaded(sources[split], order, 1)
        assert batch.targets.tolist() == (batch.ids % 2).tolist()


def test_a_collate_beside_fetch_is_refused() -> None:
    """It would be ignored, because `fetch` returns whole batches."""
    whole = {"_target_": "tests.data.loading.Fetched", "samples": 12}
    with pytest.raises(
        InputError, match=r"data\.training_collate: expected .* got Fetched"
    ):
        built(train=whole, training_collate=f"{__name__}.is_even")


def fold_ids(fold: int, part: str, folds: int = 5, seed: int = 0) -> list[int]:
    dataset = Fold(TensorDataset(torch.arange(N)), part, fold, folds, seed)
    return [int(dataset[index][0]) for index in range(len(dataset))]


@pytest.mark.parametrize("folds", [2, 7, N])
def test_folds_hold_each_sample_out_once(folds: int) -> None:
    """Each fold's two parts make up the whole data set; fold sizes differ by at most
    one."""
    held_out = [fold_ids(fold, "validation", folds) for fold in range(folds)]
    assert sorted(i for fold in held_out for i in fold) == list(range(N))
    assert {len(fold) for fold in held_out} <= {N // folds, N // folds + 1}
    for fold in range(folds):
        both = fold_ids(fold, "train", folds) + held_out[fold]
        assert sorted(both) == list(range(N))
    assert fold_ids(1, "train", folds) != fold_ids(1, "train", folds, seed=1)


def test_a_fold_loads_whole_batches_if_the_whole_does() -> None:
    """A fold has `fetch` and `sha256` if and only if the whole data set has them."""
    whole = Fetched(N)
    plain = TensorDataset(torch.arange(N))
    whole.sha256 = {"file": "abc"}
    part, other = (
        Fold(each, "train", fold=0, folds=5, seed=0) for each in (whole, plain)
    )
    batch = Source(part, "train", seed=0)[Position(0, np.array([2, 0]))]
    assert batch.targets.tolist() == part.indices[[2, 0]].tolist()
    assert part.sha256 == {"file": "abc"}
    assert not hasattr(other, "fetch")
    assert not hasattr(other, "sha256")
