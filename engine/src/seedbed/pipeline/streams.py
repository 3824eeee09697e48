"""Iterable data sets, split into a fixed number of streams that are read in order.

A sample's id is its position in its stream, times the number of streams, plus the
number of the stream. So a batch is a list of ids, as for map-style data sets, and
loading it is a function of
them: earlier samples of their streams are read and dropped, unless they have just been
read.
"""

import bisect
import copy
import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils import worker

from seedbed import fingerprint, rng
from seedbed.errors import InputError
from seedbed.names import SPLITS
from seedbed.pipeline.positions import Ids, Position
from seedbed.pipeline.source import Source
from seedbed.pipeline.tensors import contents

_FIRST = 4  # samples of each stream that are compared with those of other streams


class StreamEnd(InputError):
    """A stream has fewer samples than were asked for."""


@dataclass
class _Reading:
    """A stream that this process is reading."""

    epoch: int
    position: int  # of the next sample
    samples: Iterator[Any]
    info: worker.WorkerInfo  # returned by `get_worker_info` during a read


class StreamDataset(Dataset[Any]):
    """An iterable data set as `count` streams, each read from its own copy of the data
    set.

    While a stream is read, `torch.utils.data.get_worker_info()` returns the stream's
    number as `id` and `count` as `num_workers`, regardless of the process that reads
    it.
    """

    def __init__(
        self, dataset: Any, split: str, count: int, samples: int, seed: int
    ) -> None:
        """Wrap a data set whose epochs read `samples`, under a seed of the augment
        stream."""
        self.dataset = dataset
        self.count = count
        self._split = split
        self._samples = samples
        self._seed = seed
        self._readings: dict[tuple[int, int], _Reading] = {}  # by process id and stream

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_readings": {}}  # another process starts its own

    @property
    def sha256(self) -> Any:
        return self.dataset.sha256

    def before(self, epoch: int, sample_id: int) -> range:
        """Return the ids to read first, in order; (re)open the sample's stream if
        necessary."""
        position, stream = divmod(sample_id, self.count)
        key = (os.getpid(), stream)  # a forked process shares its parent's open files
        reading = self._readings.get(key)
        if reading is None or reading.epoch != epoch or reading.position > position:
            start = position if hasattr(self.dataset, "seek") else 0
            dataset = self.dataset
            split = SPLITS.index(self._split)
            seed = rng.key(self._seed, "augment", split, epoch, -2, stream) >> 1
            info = worker.WorkerInfo(
                id=stream, num_workers=self.count, seed=seed, dataset=dataset
            )
            reading = _Reading(epoch, start, self._read(epoch, stream, start), info)
            self._readings[key] = reading
        return range(reading.position * self.count + stream, sample_id, self.count)

    def __getitem__(self, sample_id: int) -> Any:
        position, stream = divmod(sample_id, self.count)
        reading = self._readings[os.getpid(), stream]
        before = worker._worker_info  # which PyTorch sets in loader workers
        worker._worker_info = reading.info
        try:
            if get_worker_info() is not reading.info:
                raise RuntimeError(
                    f"torch {torch.__version__}: get_worker_info reads elsewhere"
                )
            sample = next(reading.samples)
        except StopIteration:
            raise StreamEnd(
                f"data.{self._split}: expected another sample of stream {stream} of"
                f" {self.count} of {type(self.dataset).__name__}, got its end after"
                f" {position}; lower data.samples_per_epoch, or, to read each stream to"
                " its end, set neither it nor data.stream_lengths"
            ) from None
        finally:
            worker._worker_info = before
        reading.position += 1
        return sample

    def _read(self, epoch: int, stream: int, position: int) -> Iterator[Any]:
        try:
            dataset = copy.deepcopy(self.dataset)  # as each loader worker would have
        except TypeError:  # it holds a lock or an open file
            dataset = copy.copy(self.dataset)
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        if position:
            dataset.seek(stream, position)
        yield from dataset


def length(dataset: Any, split: str) -> int:
    """Return the number of samples of an iterable data set; without a length, count
    them once."""
    if hasattr(type(dataset), "__len__"):
        return len(dataset)
    if split == "train":  # a pass over it may never end
        raise InputError(
            f"data.samples_per_epoch: expected an integer for {type(dataset).__name__},"
            " which has no __len__, got none; set the number of samples of an epoch"
        )
    stream = StreamDataset(dataset, split, 1, 0, 0)
    ids = itertools.count()
    with rng.restored(), suppress(StreamEnd):
        for sample_id in ids:
            stream.before(0, sample_id)
            stream[sample_id]
    return next(ids) - 1


class StreamSource(Source):
    """Streams as a function from positions to batches."""

    dataset: StreamDataset

    def samples(self, epoch: int, ids: Ids, rows: Ids) -> list[Any]:
        samples = []
        for sample_id in ids.tolist():
            for read_id in (*self.dataset.before(epoch, sample_id), sample_id):
                one = np.array([read_id])
                [sample] = super().samples(epoch, one, one)
            samples.append(sample)
        return samples

    def require_different(self) -> None:
        """Raise InputError if two streams begin with the same samples."""
        known: dict[tuple[int, ...], int] = {}
        with rng.restored():
            for stream in range(self.dataset.count):
                hashes = tuple(self._first_hashes(stream))
                # not if the stream is empty, or all zeros
                says_something = len(set(hashes)) > 1
                if says_something and hashes in known:
                    raise InputError(
                        f"data.train: expected {self.dataset.count} streams of"
                        " different samples, got the same ones in streams"
                        f" {known[hashes]} and {stream} of"
                        f" {type(self.dataset.dataset).__name__}; let __iter__ of the"
                        " data set yield the part that get_worker_info().id and"
                        " .num_workers name, or set data.streams=1"
                    )
                known[hashes] = stream

    def _first_hashes(self, stream: int) -> Iterator[int]:
        for position in range(_FIRST):
            sample_id = position * self.dataset.count + stream
            # equal draws in all streams
            rng.seed_cpu(rng.key(self.seed, "augment", position))
            self.dataset.before(0, sample_id)
            try:
                yield int(fingerprint.of_tensors(contents(self.dataset[sample_id])))
            except StreamEnd:
                return

    def count_samples(self) -> list[int]:
        """Return the length of each stream, by reading all of them as the first epoch
        does.

        Raises:
            InputError: their sum is not the length of the data set.
        """
        lengths = list[int]()
        count = self.dataset.count
        with rng.restored():
            for stream in range(count):
                lengths.append(0)
                with suppress(StreamEnd):
                    while True:
                        sample_id = np.array([lengths[stream] * count + stream])
                        self.samples(0, sample_id, sample_id)
                        lengths[stream] += 1
        expected = len(self.dataset)
        if sum(lengths) != expected:
            raise InputError(
                f"data.train: expected {expected} samples, as"
                f" {type(self.dataset.dataset).__name__}.__len__ returns, in {count}"
                f" streams together, got {sum(lengths)}"
                f" ({', '.join(map(str, lengths[:8]))}{', ...' if count > 8 else ''});"
                " let the streams have different parts, by get_worker_info(), or"
                " correct __len__"
            )
        return lengths


class StreamOrder:
    """The order of samples in streams: each shard of a batch comes from the next stream
    in turn.

    A stream that cannot fill another shard leaves; in the end, what is left of all of
    them is put together. If `streams` is a multiple of the shards and all have the same
    length, a process reads only the streams of its own shards.
    """

    def __init__(
        self,
        streams: int,
        batch_size: int,
        shards: int,
        lengths: Sequence[int] | None = None,  # of the streams; None: never ending
        samples: int = 0,  # of an epoch of streams that never end
    ) -> None:
        self._streams = streams
        self._shards = shards
        self._size = batch_size // shards
        self._samples = samples if lengths is None else sum(lengths)
        self.steps_per_epoch = self._samples // batch_size
        self.samples_per_epoch = self.steps_per_epoch * batch_size
        size = self._size
        rounds = (
            np.full(streams, 1 << 62) if lengths is None else np.array(lengths) // size
        )
        # Between two of these rounds, the same streams take their turns.
        self._rounds = np.unique([0, *rounds.tolist()])
        self._turns = [
            np.flatnonzero(rounds > start) for start in self._rounds.tolist()
        ]
        counts = [len(streams) for streams in self._turns[:-1]]
        # The number of shards before each of these rounds, in Python's integers: some
        # are large.
        spans = zip(np.diff(self._rounds).tolist(), counts, strict=True)
        self._shards_before = [
            0,
            *itertools.accumulate(span * count for span, count in spans),
        ]
        self._rest: Ids = np.zeros(0, np.int64)
        if lengths is not None:
            left = [
                np.arange(first * size, length) * streams + stream
                for stream, (first, length) in enumerate(
                    zip(rounds.tolist(), lengths, strict=True)
                )
            ]
            self._rest = np.concatenate(left)

    def position(self, epoch: int, index: int) -> Position:
        shards = range(index * self._shards, (index + 1) * self._shards)
        return Position(epoch, np.concatenate([self._ids(number) for number in shards]))

    def _ids(self, number: int) -> Ids:
        """Return the ids of a shard of the epoch, counted over all of its batches."""
        size = self._size
        last = self._shards_before[-1]
        if number >= last:
            return self._rest[(number - last) * size :][:size]
        section = bisect.bisect_right(self._shards_before, number) - 1
        turns = self._turns[section]
        rounds, turn = divmod(number - self._shards_before[section], len(turns))
        first = (int(self._rounds[section]) + rounds) * size
        ids: Ids = np.arange(first, first + size) * self._streams + turns[turn]
        return ids

    def workers(self, wanted: int, processes: int) -> int:
        """Return how many loader workers share the streams of a process."""
        return min(wanted, max(1, self._streams // processes))


def equal_lengths(samples: int, streams: int) -> list[int]:
    """Return the lengths of streams that have every n-th of `samples`, from the first,
    second..."""
    return [len(range(stream, samples, streams)) for stream in range(streams)]
