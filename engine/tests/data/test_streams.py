"""Iterable data sets as streams: samples depend only on stream and position."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from seedbed.assemble import sources
from seedbed.data.positions import positions
from seedbed.data.source import Source
from seedbed.data.streams import StreamDataset, StreamOrder, StreamSource, length, whole_steps
from seedbed.errors import InputError
from seedbed.training.shards import Shards
from tests.data.loading import hashes, loaded, settings

# There may be more loader workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

N, COUNT, BATCH = 96, 4, 4


class Numbers(IterableDataset[tuple[Tensor, int]]):
    """Numbers with noise, divided among loader workers in the usual way."""

    def __init__(self, samples: int = N) -> None:
        self.samples, self.place = samples, {"at": 0}

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.samples, step):
            noise = [random.random(), np.random.rand(), float(torch.rand(()))]
            yield torch.tensor([float(number), *noise]), number % 2


class Iterators(Numbers):
    """Its own iterator; the epoch and a generator of `get_worker_info().seed` are attributes."""

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        self.place["at"], self.own = info.id, np.random.default_rng(info.seed)
        return self

    def __next__(self) -> tuple[Tensor, int]:
        if self.place["at"] >= self.samples:
            raise StopIteration
        self.place["at"] += get_worker_info().num_workers
        noise = [random.random(), self.own.random()]
        return torch.tensor([float(self.place["at"]), *noise]), self.epoch


def source_of(dataset: Any, seed: int = 0) -> Source:
    return StreamSource(StreamDataset(dataset, "train", COUNT, N, seed), "train", seed)


def order_of(shards: int = 1) -> StreamOrder:
    return StreamOrder(COUNT, BATCH, shards, whole_steps(N, COUNT, BATCH, shards))


def numbers(source: Source, places: Any) -> list[list[int]]:
    return [source[place].inputs[:, 0].int().tolist() for place in places]


def test_a_batch_comes_from_one_stream() -> None:
    """Batch b is the next batch of stream b % count, and an epoch reads each sample once."""
    order = order_of()
    assert order.steps_per_epoch == 24
    found = numbers(source_of(Numbers()), positions(order, 0, 24))
    for index, batch in enumerate(found):
        first = index // COUNT * BATCH
        stream = index % COUNT
        assert batch == [stream + COUNT * (first + i) for i in range(BATCH)]


@pytest.mark.parametrize("kind", [Numbers, Iterators])
def test_a_batch_is_a_function_of_its_position(kind: type) -> None:
    """Batches are the same with 0, 4, or 2 new loader workers per epoch, for more than an epoch."""
    order = order_of()
    here = hashes(loaded(source_of(kind()), order, 28))
    assert len(set(here)) == 28
    assert hashes(loaded(source_of(kind()), order, 28, 4)) == here
    assert hashes(loaded(source_of(kind()), order, 28, 2, persistent_workers=False)) == here
    assert hashes(loaded(source_of(kind(), seed=1), order, 28)) != here, "negative control"
    # Backwards, twice and across epochs, as a resume, `--explain` and the probe read.
    source = source_of(kind())
    places = [order.position(epoch, index) for epoch in (0, 1) for index in (0, 5, 9)]
    forwards = hashes(iter([source[place] for place in places]))
    assert hashes(iter([source[place] for place in reversed(places)])) == forwards[::-1]
    assert hashes(iter([source[places[1]], source[places[1]]])) == [forwards[1]] * 2
    assert len(set(forwards)) == len(forwards)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_shards_read_streams_of_their_own(processes: int) -> None:
    """The batch is the same on any number of processes, none of which reads another's streams."""
    order = order_of(shards=4)
    whole = numbers(source_of(Numbers()), positions(order, 0, 8))
    parts, size = [], 4 // processes
    for rank in range(processes):
        shards = Shards(4)
        shards.mine = range(rank * size, (rank + 1) * size)
        source = source_of(Numbers())
        found = numbers(source, shards.divide(positions(order, 0, 8)))
        assert {number % COUNT for batch in found for number in batch} == set(shards.mine)
        parts.append(np.array(found).reshape(8, -1))
    assert np.concatenate(parts, axis=1).tolist() == whole


@pytest.mark.parametrize("samples", [90, 97])
@pytest.mark.parametrize(("count", "shards"), [(4, 1), (4, 8), (3, 1)])
def test_an_epoch_fits_into_streams_of_equal_length(samples: int, count: int, shards: int) -> None:
    """No stream of a data set with a length ends early, and nearly all of it is read."""
    steps = whole_steps(samples, count, 8, shards)
    order, taken = StreamOrder(count, 8, shards, steps), [0] * count
    for place in positions(order, 0, steps):
        for sample_id in place.ids:
            position, stream = divmod(int(sample_id), count)
            assert position == taken[stream]
            taken[stream] += 1
    assert max(taken) <= samples // count
    assert order.samples_per_epoch > samples - 8 * max(count, shards) - count


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_ends_early_is_named(workers: int) -> None:
    with pytest.raises(InputError, match=r"^data\.train: .* end of stream 3 of 4 of Numbers after"):
        loaded(source_of(Numbers(N - 1)), order_of(), 24, workers)


@pytest.mark.parametrize(("samples", "steps"), [({}, 24), ({"samples_per_epoch": 45}, 11)])
def test_an_epoch_is_as_long_as_the_data_set_or_as_is_said(samples: Any, steps: int) -> None:
    spec = {"_target_": f"{__name__}.Numbers"}
    made = settings(train=spec, validation=spec, streams=COUNT, **samples)
    assert sources.build_order(made, sources.build_sources(made)["train"]).steps_per_epoch == steps


class Endless(IterableDataset[tuple[Tensor, int]]):
    """Numbers without a length; 21 of them unless they are for training."""

    def __init__(self, ends: bool = True) -> None:
        self.ends = ends

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        for number in range(info.id, 21 if self.ends else 10**9, info.num_workers):
            yield torch.tensor([float(number), float(torch.rand(()))]), number % 2


def test_a_data_set_without_a_length_is_evaluated_to_its_end() -> None:
    """With loader workers or without. Training asks for the length of an epoch, in one line."""
    train = {"_target_": f"{__name__}.Endless", "ends": False}
    spec = {"_target_": f"{__name__}.Endless"}
    how = {"train": train, "validation": spec, "test": spec, "eval_batch_size": 8}
    made = settings(streams=COUNT, samples_per_epoch=40, **how)
    assert len(sources.build_sources(made)["train"]) == 40
    for split in ("validation", "test"):
        source = sources.build_sources(made)[split]
        batches = [*sources.evaluation_batches(made, source, Shards())]
        assert [len(batch.ids) for batch in batches] == [8, 8, 5]
        assert [int(x) for b in batches for x in b.inputs[:, 0]] == [*range(21)]
        made.data.num_workers = 2
        again = sources.evaluation_batches(made, sources.build_sources(made)[split], Shards())
        assert hashes(again) == hashes(batches)
    with pytest.raises(InputError, match=r"^data\.samples_per_epoch: .* Endless, which"):
        sources.build_sources(settings(streams=COUNT, **how))


def test_counting_samples_draws_nothing() -> None:
    """What is built afterwards has the same draws."""
    before = torch.get_rng_state()
    assert length(Endless(), "validation") == 21
    assert torch.equal(torch.get_rng_state(), before)
    assert length(Numbers(7), "validation") == 7
