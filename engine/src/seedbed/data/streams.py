"""Iterable data sets, cut into a fixed number of streams that are read in order.

A sample's id is its position in its stream, times the number of streams, plus the number of the
stream. So a batch is a list of ids as everywhere else, and loading it is a function of them: what
lies before them in their stream is read and dropped, unless it was read just before.
"""

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info
from torch.utils.data._utils import worker

from seedbed import rng
from seedbed.data.positions import Ids, Position
from seedbed.data.source import Source
from seedbed.errors import InputError
from seedbed.names import SPLITS


@dataclass
class _Reading:
    """A stream as it is read in this process."""

    epoch: int
    position: int  # of the next sample
    info: worker.WorkerInfo  # what `get_worker_info` shows meanwhile
    iterator: Iterator[Any] | None = None


class Streams(Dataset[Any]):
    """An iterable data set as so many streams, each of which is read by a copy of its own.

    While a stream is read, `torch.utils.data.get_worker_info()` tells the data set to be worker
    number `stream` of so many, whatever process reads it.
    """

    def __init__(self, dataset: Any, split: str, count: int, samples: int, seed: int) -> None:
        """Take an iterable data set.

        Args:
            split: one of SPLITS.
            count: how many streams it is cut into.
            samples: how many of an epoch are read.
            seed: of the augment stream, from which comes what `get_worker_info().seed` shows.
        """
        self.dataset = dataset
        self._split, self._count, self._samples, self._seed = split, count, samples, seed
        self._readings: dict[tuple[int, int], _Reading] = {}  # by process and stream

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is being read: another process begins anew."""
        return vars(self) | {"_readings": {}}

    @property
    def sha256(self) -> Any:
        """Return the digests of the data set, if it has some."""
        return self.dataset.sha256

    def before(self, epoch: int, sample_id: int) -> range:
        """Return the ids of samples that must be read, in order, before a sample can be."""
        position, stream = divmod(sample_id, self._count)
        place = (os.getpid(), stream)  # a forked process shares the files that its parent has open
        reading = self._readings.get(place)
        if reading is None or reading.epoch != epoch or reading.position > position:
            start = position if hasattr(self.dataset, "seek") else 0
            reading = _Reading(epoch, start, self._info(stream, epoch))
            self._readings[place] = reading
        return range(reading.position * self._count + stream, sample_id, self._count)

    def __getitem__(self, sample_id: int) -> Any:
        """Read the next sample of a stream; see `before`."""
        position, stream = divmod(sample_id, self._count)
        reading = self._readings[os.getpid(), stream]
        with _shown_as_worker(reading.info):
            if reading.iterator is None:
                reading.iterator = self._open(stream, reading)
            try:
                sample = next(reading.iterator)
            except StopIteration:
                raise self._ended(position, stream) from None
        reading.position += 1
        return sample

    def _open(self, stream: int, reading: _Reading) -> Iterator[Any]:
        dataset = copy.copy(self.dataset)  # as each loader worker has one
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(reading.epoch)
        if reading.position:
            dataset.seek(stream, reading.position)
        return iter(dataset)

    def _info(self, stream: int, epoch: int) -> worker.WorkerInfo:
        seed = rng.key(self._seed, "augment", SPLITS.index(self._split), epoch, -2, stream) >> 1
        return worker.WorkerInfo(
            id=stream, num_workers=self._count, seed=seed, dataset=self.dataset
        )

    def _ended(self, position: int, stream: int) -> InputError:
        name = type(self.dataset).__name__
        if self._split != "train":
            return InputError(
                f"data.{self._split}: expected {self._samples} samples, as its length is, got "
                f"{position} from {name}; mend its __len__"
            )
        return InputError(
            f"data.{self._split}: expected a sample at position {position} of stream {stream} of "
            f"{self._count} in each epoch, got the end of {name}; lower data.samples_per_epoch "
            f"({self._samples}), or cut the data set by get_worker_info() into {self._count} equal "
            "streams"
        )


@contextmanager
def _shown_as_worker(info: worker.WorkerInfo) -> Iterator[None]:
    """Let `get_worker_info` show a stream; it reads a variable that each loader worker sets."""
    before = worker._worker_info
    worker._worker_info = info
    try:
        if get_worker_info() is not info:
            raise RuntimeError(f"torch {torch.__version__}: get_worker_info reads elsewhere")
        yield
    finally:
        worker._worker_info = before


class StreamSource(Source):
    """Streams as a function from positions to batches."""

    def __init__(self, streams: Streams, *arguments: Any) -> None:
        """Take streams; the other arguments are those of `Source`."""
        super().__init__(streams, *arguments)
        self._streams = streams

    def _samples(self, place: tuple[int, int], ids: Ids, rows: Ids) -> list[Any]:
        found = []
        for sample_id in ids.tolist():
            for each in (*self._streams.before(place[1], sample_id), sample_id):
                one = np.array([each])
                sample = super()._samples(place, one, one)[0]
            found.append(sample)
        return found


class Streamed:
    """The order of streams: batch b comes from stream b % count.

    Of several shards of a batch each comes from a stream of its own, in turn, so that each process
    reads the streams of its shards alone, if `count` is a multiple of the shards.
    """

    def __init__(self, streams: int, batch_size: int, shards: int, steps_per_epoch: int) -> None:
        """Take the number of streams, and how batches are cut."""
        self._streams, self._shards, self._size = streams, shards, batch_size // shards
        self.steps_per_epoch = steps_per_epoch

    def position(self, epoch: int, index: int) -> Position:
        """Return a batch of an epoch."""
        units = np.arange(index * self._shards, (index + 1) * self._shards)
        rounds, streams = np.divmod(units, self._streams)
        positions = rounds[:, None] * self._size + np.arange(self._size)
        return Position(epoch, (positions * self._streams + streams[:, None]).reshape(-1))

    def samples(self, steps: int) -> int:
        """Return how many samples so many steps take."""
        return steps * self._size * self._shards

    def workers(self, wanted: int, processes: int) -> int:
        """Return how many loader workers each process has: a divisor of the streams that it reads.

        So each stream is read by one of them, from its beginning to its end.
        """
        mine = self._streams // processes if self._streams % processes == 0 else 1
        return max((n for n in range(1, wanted + 1) if mine % n == 0), default=0)


def whole_steps(samples: int, streams: int, batch_size: int, shards: int) -> int:
    """Return how many steps streams of equal length, `samples` in all, are enough for."""
    slices = samples // streams // (batch_size // shards)
    return slices * streams // shards
