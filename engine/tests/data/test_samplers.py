"""Samplers: pure functions of the epoch and the seed, whose batches any workers load alike."""

import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from seedbed.data.positions import Position
from seedbed.data.samplers import Sampled, values_of
from seedbed.data.source import Source
from seedbed.errors import InputError
from seedbed.worker import parts
from tests import pages
from tests.data.loading import Fetched, hashes, loaded, settings
from tests.running import TEMPLATE

N = 40
CALLS = itertools.count()
_PAGE = pages.files((TEMPLATE / "docs/examples/samplers.md").read_text())
RECIPES: dict[str, Any] = {}
exec(_PAGE["src/project/samplers.py"], RECIPES)


class Uneven(Dataset[tuple[Tensor, int]]):
    """Sequences of different lengths, each with noise of its own."""

    lengths = tuple(1 + i % 7 for i in range(N))

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.randn(7)[: self.lengths[index]].sum(), index % 2

    def labels(self) -> list[int]:
        return [min(i % 8, 1) for i in range(N)]


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
    """Held or returned by the data set, or by the whole of a part; not by another number."""
    part = torch.utils.data.Subset(Uneven(), [3, 1])
    assert values_of(part, "lengths").tolist() == [4, 2]
    assert values_of(Uneven(), "labels").tolist() == Uneven().labels()
    with pytest.raises(InputError, match=r"data\.sampler: expected a number for each of 40"):
        values_of(Uneven(), "nothing")


def test_the_recipes_do_what_they_say() -> None:
    """Classes come equally often, of which one has seven times as many samples.

    In buckets every sample comes once, and a padded batch is never too large.
    """
    order = sampled(READY["balanced"]())
    taken = np.concatenate([ids for epoch in range(200) for ids in ids_of(order, epoch)])
    assert abs(np.mean(taken % 8 == 0) - 0.5) < 0.02
    batches = ids_of(sampled(RECIPES["Buckets"](Uneven(), 28, "lengths")), 0)
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
    """Batches of any size, samples that come again: the same for 2 workers, and from any step."""
    source, order = Source(data, "train", seed=0), sampled(READY[name]())
    last = 2 * order.steps_per_epoch + 2
    here = hashes(loaded(source, order, last))
    assert hashes(loaded(source, order, last, workers=2)) == here
    again, other = sampled(READY[name]()), sampled(READY[name](), seed=1)
    assert hashes(loaded(source, again, last, workers=2, first=5)) == here[5:]
    assert hashes(loaded(source, other, last)) != here, "negative control"


@pytest.mark.parametrize("data", [Uneven(), Fetched(N)])
def test_a_sample_that_comes_again_is_drawn_anew(data: Dataset[Any]) -> None:
    """Within a batch and within an epoch; the first time it has the draws that it always has."""
    order = sampled(given(lambda _: [[3, 3, 5], [3, 6, 5]]))
    source = Source(data, "train", seed=0)
    first, second = (source[order.position(0, index)].inputs for index in (0, 1))
    threes = [first[0], first[1], second[0]]
    assert len({tuple(each.reshape(-1).tolist()) for each in threes}) == 3
    assert not torch.equal(first[2], second[2])
    alone = source[Position(0, np.array([3]))].inputs[0]
    assert torch.equal(alone, threes[0])
    # Whatever batch it is in, and however the batch is cut into shards.
    assert torch.equal(source[order.position(0, 0).cut(1, 2)].inputs[0], threes[1])


@pytest.mark.parametrize(
    ("batches", "line"),
    [
        (lambda _: [[next(CALLS), 1], [2, 3]], "others from SimpleNamespace"),
        (lambda epoch: [[0, 1]] * (2 + max(epoch - 1, 0)), "in every epoch, got 3 in epoch 2"),
        # What shards would leave out, the last sample by -1, a mask for ids.
        *((lambda _, ids=ids: [[0, 1], ids], "expected batches of ids from 0 to 39")
          for ids in ([0, 1, 2], [-1, 0], [0, N], [True, False], [])),
    ],
)  # fmt: skip
def test_a_sampler_that_is_not_pure_or_gives_other_batches_is_refused(
    batches: Callable[[int], Any], line: str
) -> None:
    """Before the first step; validation and schedule count in epochs."""
    with pytest.raises(InputError, match=rf"^data\.sampler: .*{line}"):
        sampled(given(batches), multiple_of=2).position(2, 0)


@pytest.mark.parametrize(("key", "value"), [("streams", 4), ("batch_size", 41)])
def test_what_gives_no_order_is_refused(key: str, value: int) -> None:
    with pytest.raises(InputError, match=rf"^data\.{key}: expected"):
        parts.build_order(settings(**{key: value}), Source(Uneven(), "train", seed=0))
