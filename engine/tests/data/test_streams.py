"""Iterable data sets as streams: samples depend only on stream and position."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from seedbed import record
from seedbed.assemble import sources
from seedbed.errors import InputError
from seedbed.pipeline import workers as loader_workers
from seedbed.pipeline.positions import positions
from seedbed.pipeline.source import Source
from seedbed.pipeline.streams import (
    StreamDataset,
    StreamOrder,
    StreamSource,
    equal_lengths,
    length,
)
from seedbed.training.shards import Shards
from tests import tiny
from tests.data.loading import hashes, loaded, settings
from tests.run.runs import SHORT, resumed, trained
from tests.running import train
from tests.tiny import CLASSES, FEATURES

# There may be more loader workers than cores.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

N = 96
CPU = torch.device("cpu")
COUNT = 4
BATCH = 4


class Numbers(IterableDataset[tuple[Tensor, int]]):
    """Numbers with noise, divided among loader workers in the usual way."""

    def __init__(self, samples: int = N) -> None:
        self.samples = samples
        self.place = {"at": 0}

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for number in range(first, self.samples, step):
            noise = [random.random(), np.random.rand(), float(torch.rand(()))]
            yield torch.tensor([float(number), *noise]), number % 2


class Iterators(Numbers):
    """Its own iterator; the epoch and a generator of `get_worker_info().seed` are
    attributes."""

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
    return StreamOrder(COUNT, BATCH, shards, equal_lengths(N, COUNT))


def numbers(source: Source, places: Any) -> list[list[int]]:
    return [source[place].inputs[:, 0].int().tolist() for place in places]


def test_a_batch_comes_from_one_stream() -> None:
    """Batch b is the next batch of stream b % count, and an epoch reads each sample
    once."""
    order = order_of()
    assert order.steps_per_epoch == 24
    found = numbers(source_of(Numbers()), positions(order, 0, 24))
    for index, batch in enumerate(found):
        first = index // COUNT * BATCH
        stream = index % COUNT
        assert batch == [stream + COUNT * (first + i) for i in range(BATCH)]


@pytest.mark.parametrize("kind", [Numbers, Iterators])
def test_a_batch_is_a_function_of_its_position(kind: type) -> None:
    """Batches are the same with 0, 4, or 2 new loader workers per epoch, for more than
    an epoch."""
    order = order_of()
    here = hashes(loaded(source_of(kind()), order, 28))
    assert len(set(here)) == 28
    assert hashes(loaded(source_of(kind()), order, 28, 4)) == here
    assert (
        hashes(loaded(source_of(kind()), order, 28, 2, persistent_workers=False))
        == here
    )
    assert hashes(loaded(source_of(kind(), seed=1), order, 28)) != here, (
        "negative control"
    )
    # Backwards, twice and across epochs, as a resume and `--explain` read them.
    source = source_of(kind())
    places = [order.position(epoch, index) for epoch in (0, 1) for index in (0, 5, 9)]
    forwards = hashes(iter([source[place] for place in places]))
    assert hashes(iter([source[place] for place in reversed(places)])) == forwards[::-1]
    assert hashes(iter([source[places[1]], source[places[1]]])) == [forwards[1]] * 2
    assert len(set(forwards)) == len(forwards)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_shards_read_streams_of_their_own(processes: int) -> None:
    """The batch is the same on any number of processes, none of which reads another's
    streams."""
    order = order_of(shards=4)
    whole = numbers(source_of(Numbers()), positions(order, 0, 8))
    parts = []
    size = 4 // processes
    for rank in range(processes):
        shards = Shards(4)
        shards.mine = range(rank * size, (rank + 1) * size)
        source = source_of(Numbers())
        found = numbers(source, shards.divide(positions(order, 0, 8)))
        assert {number % COUNT for batch in found for number in batch} == set(
            shards.mine
        )
        parts.append(np.array(found).reshape(8, -1))
    assert np.concatenate(parts, axis=1).tolist() == whole


@pytest.mark.parametrize(
    "lengths", [[23, 23, 22, 22], [50, 0, 7, 41], [3, 2, 1, 9], [9, 9, 9, 9]]
)
@pytest.mark.parametrize("shards", [1, 2, 8])
def test_an_epoch_is_all_samples_once(lengths: list[int], shards: int) -> None:
    """But for an incomplete last batch; each stream is read in order."""
    order = StreamOrder(COUNT, 8, shards, lengths)
    ids = np.concatenate(
        [each.ids for each in positions(order, 0, order.steps_per_epoch)]
    )
    assert len(ids) == order.samples_per_epoch == sum(lengths) // 8 * 8
    assert len(set(ids.tolist())) == len(ids)
    for stream, samples in enumerate(lengths):
        read = ids[ids % COUNT == stream] // COUNT
        assert read.tolist() == [*range(len(read))]
        assert len(read) > samples - 8
    # steps before a stream leaves
    first = min(lengths) // (8 // shards) * COUNT // shards
    endless = StreamOrder(COUNT, 8, shards, samples=sum(lengths))
    for step in range(first):
        assert (
            order.position(0, step).ids.tolist()
            == endless.position(0, step).ids.tolist()
        )


class Files(IterableDataset[tuple[Tensor, int]]):
    """Files of different sizes, some for each loader worker, as many data sets divide
    them."""

    sizes = (40, 3, 17, 0, 12, 5)

    def __init__(self, samples: int = sum(sizes), divides: bool = True) -> None:
        self.samples = samples
        self.divides = divides

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        for file in range(len(self.sizes)):
            if not self.divides or file % info.num_workers == info.id:
                for number in range(self.sizes[file]):
                    yield (
                        torch.tensor([100.0 * file + number, random.random()]),
                        number % 2,
                    )


class Wide(Files):
    """As `Files`, for the models of `tests.tiny`."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        for sample, _ in super().__iter__():
            yield sample.repeat(FEATURES // 2) / 100, int(sample[0]) % CLASSES


@pytest.mark.usefixtures("this_process_trains")
def test_a_run_over_unequal_streams_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """After streams have left, and with other loader workers; config.yaml has their
    lengths."""
    train = {"_target_": f"{__name__}.Wide"}
    data = tiny.DATA | {"train": train, "streams": COUNT, "samples_per_epoch": None}
    words = (*SHORT, *tiny.overrides(tiny.DENSE, data))
    whole = trained(tmp_path / "whole", *words)
    assert record.read_config(whole)["data"]["stream_lengths"] == [52, 8, 17, 0]
    resumed(tmp_path / "resumed", whole, 8, *words, "data.num_workers=2")


class Noted(Wide):
    """As `Wide`, and writes to a file that it was built."""

    def __init__(self, name: str) -> None:
        super().__init__()
        with open(os.environ["TINY_BUILDS"], "a") as builds:
            builds.write("x")


@pytest.mark.long
def test_streams_are_counted_once_for_a_run(tmp_path: Path) -> None:
    """By the first process of its rehearsal, which runs of other seeds need not repeat.

    The command, given again, asks for the same run, although config.yaml now has the
    lengths.
    """
    builds = tmp_path / "builds"
    variables = {"TINY_BUILDS": str(builds)}
    # The name is another in each session, whose rehearsal has not passed before.
    noted = {"_target_": f"{__name__}.Noted", "name": f"of {tmp_path}"}
    data = tiny.DATA | {"train": noted, "streams": COUNT}
    words = (
        *tiny.overrides(tiny.DENSE, data),
        "determinism.threads=1",
        "trainer.max_epochs=1",
    )
    counts = []
    for name, seed in (("first", 0), ("seed", 1)):
        done = train(tmp_path / name, *words, f"seed={seed}", environment=variables)
        assert done.returncode == 0, done.stderr
        counts.append(len(builds.read_text()))
        assert record.read_config(tmp_path / name)["data"]["stream_lengths"] == [
            52,
            8,
            17,
            0,
        ]
    assert counts == [4, 6], "counted and built, twice, in the first process"
    done = train(tmp_path / "first", *words, "seed=0", environment=variables)
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stdout


def of_files(**given: Any) -> tuple[Any, Source]:
    """Return settings after the streams were counted, and the training source."""
    spec = {"_target_": f"{__name__}.Files"}
    keys = {
        "streams": COUNT,
        **{k: v for k, v in given.items() if k not in vars(Files())},
    }
    arguments = {k: v for k, v in given.items() if k in vars(Files())}
    made = settings(train={**spec, **arguments}, validation=spec, **keys)
    made = sources.count_streams(made, Shards())
    return made, sources.build_sources(made)["train"]


def test_streams_of_unequal_length_are_read_to_their_ends() -> None:
    """All samples once in each epoch, the same batches for any number of loader
    workers.

    Lengths are counted once: settings that hold them are not read again.
    """
    made, source = of_files()
    assert made.plain["data"]["stream_lengths"] == [52, 8, 17, 0]
    order = sources.build_order(made, source)
    assert order.steps_per_epoch == 77 // 4
    here = loaded(source, order, 2 * 19)
    for epoch in (0, 1):
        batches = here[epoch * 19 : (epoch + 1) * 19]
        read = [int(x) for batch in batches for x in batch.inputs[:, 0]]
        every = {
            100 * file + n for file, size in enumerate(Files.sizes) for n in range(size)
        }
        assert len(read) == len(set(read)) == 76
        assert every > set(read)
    for workers in (1, 2, 3):
        assert isinstance(order, StreamOrder)
        assert order.workers(workers, 1) == workers
        how: Any = {"streams": COUNT, "persistent_workers": workers != 2}
        there = loaded(of_files()[1], order, 2 * 19, workers, **how)
        assert hashes(there) == hashes(here)
    assert hashes(loaded(of_files()[1], order, 2 * 19, first=15)) == hashes(here)[15:]
    again = sources.count_streams(made, Shards())
    assert again is made


def test_one_loader_worker_reads_each_stream() -> None:
    """Although streams leave. Negative control: in turn, several workers read the same
    ones."""
    made, source = of_files()
    order = sources.build_order(made, source)

    def sharing(streams: int) -> int:
        # before what is left of streams is put together
        handed = [*positions(order, 0, 17)]
        given: Any = (
            loader_workers._by_stream(handed, streams, 2) if streams else handed
        )
        readers: dict[int, set[int]] = {}
        for turn, place in enumerate(given):
            if place is not None:
                readers.setdefault(int(place.ids[0]) % COUNT, set()).add(turn % 2)
        return max(map(len, readers.values()))

    assert sharing(COUNT) == 1
    assert sharing(0) == 2, "negative control"


def test_streams_of_the_same_samples_are_refused() -> None:
    """A data set that ignores get_worker_info() would train on the first samples of
    each epoch."""
    line = (
        r"^data\.train: expected 4 streams of different samples, got the same ones in"
        r" streams 0 "
        r"and 1 of Files; let __iter__"
    )
    for keys in ({}, {"samples_per_epoch": 40}):
        with pytest.raises(InputError, match=line):
            of_files(divides=False, **keys)
    of_files(divides=False, streams=1)
    for samples in (76, 78):
        with pytest.raises(
            InputError, match=rf"expected {samples} samples, .* got 77 \(52, 8, 17"
        ):
            of_files(samples=samples)


def test_keys_of_streams_are_checked() -> None:
    line = r"^data\.stream_lengths: expected 4 numbers \(data\.streams\), got 2"
    for keys, expected in (
        ({"stream_lengths": [40, 37]}, line),
        ({"stream_lengths": [9] * 4, "samples_per_epoch": 8}, "expected none, got 4"),
        ({"stream_lengths": [-1] * 4}, "expected numbers of samples >= 0"),
    ):
        with pytest.raises(InputError, match=expected):
            sources.build_order(*of_files(**keys))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_that_ends_early_is_named(workers: int) -> None:
    with pytest.raises(
        InputError, match=r"^data\.train: .* sample of stream 3 of 4 of Numbers, got"
    ):
        loaded(source_of(Numbers(N - 1)), order_of(), 24, workers)


@pytest.mark.parametrize(
    ("samples", "steps"), [({}, 24), ({"samples_per_epoch": 45}, 11)]
)
def test_an_epoch_is_as_long_as_the_data_set_or_as_is_said(
    samples: Any, steps: int
) -> None:
    spec = {"_target_": f"{__name__}.Numbers"}
    made = settings(train=spec, validation=spec, streams=COUNT, **samples)
    assert (
        sources.build_order(made, sources.build_sources(made)["train"]).steps_per_epoch
        == steps
    )


class Endless(IterableDataset[tuple[Tensor, int]]):
    """Numbers without a length; 21 of them unless they are for training."""

    def __init__(self, ends: bool = True) -> None:
        self.ends = ends

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        info = get_worker_info()
        for number in range(info.id, 21 if self.ends else 10**9, info.num_workers):
            yield torch.tensor([float(number), float(torch.rand(()))]), number % 2


def test_a_data_set_without_a_length_is_evaluated_to_its_end() -> None:
    """With loader workers or without. Training asks for the length of an epoch, in one
    line."""
    train = {"_target_": f"{__name__}.Endless", "ends": False}
    spec = {"_target_": f"{__name__}.Endless"}
    how = {"train": train, "validation": spec, "test": spec, "eval_batch_size": 8}
    made = settings(streams=COUNT, samples_per_epoch=40, **how)
    assert len(sources.build_sources(made)["train"]) == 40
    for split in ("validation", "test"):
        source = sources.build_sources(made)[split]
        batches = [*sources.evaluation_batches(made, source, Shards(), CPU)]
        assert [len(batch.ids) for batch in batches] == [8, 8, 5]
        assert [int(x) for b in batches for x in b.inputs[:, 0]] == [*range(21)]
        made.data.num_workers = 2
        again = sources.evaluation_batches(
            made, sources.build_sources(made)[split], Shards(), CPU
        )
        assert hashes(again) == hashes(batches)
    with pytest.raises(
        InputError, match=r"^data\.samples_per_epoch: .* Endless, which"
    ):
        sources.build_sources(settings(streams=COUNT, **how))


def test_counting_samples_draws_nothing() -> None:
    """What is built afterwards has the same draws."""
    before = torch.get_rng_state()
    assert length(Endless(), "validation") == 21
    assert torch.equal(torch.get_rng_state(), before)
    assert length(Numbers(7), "validation") == 7
