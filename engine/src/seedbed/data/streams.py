"""Iterable data sets, split into a fixed number of streams that are read in order.

A sample's id is its position in its stream, times the number of streams, plus the number of the
stream. So a batch is a list of ids, as for map-style data sets, and loading it is a function of
them: earlier samples of their streams are read and dropped, unless they have just been read.
"""

import copy
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
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
    """An iterable data set as `count` streams, each read from its own copy of the data set.

    While a stream is read, `torch.utils.data.get_worker_info()` returns the stream's number as `id`
    and `count` as `num_workers`, regardless of the process that reads it.
    """

    def __init__(self, dataset: Any, split: str, count: int, samples: int, seed: int) -> None:
        """Wrap a data set whose epochs read `samples`, under a seed of the augment stream."""
        self.dataset = dataset
        self._split, self._count, self._samples, self._seed = split, count, samples, seed
        self._readings: dict[tuple[int, int], _Reading] = {}  # by process id and stream

    def __len__(self) -> int:
        return self._samples

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_readings": {}}  # another process starts its own

    @property
    def sha256(self) -> Any:
        return self.dataset.sha256

    def before(self, epoch: int, sample_id: int) -> range:
        """Return the ids to read first, in order; (re)open the sample's stream if necessary."""
        position, stream = divmod(sample_id, self._count)
        place = (os.getpid(), stream)  # a forked process shares its parent's open files
        reading = self._readings.get(place)
        if reading is None or reading.epoch != epoch or reading.position > position:
            start, dataset = position if hasattr(self.dataset, "seek") else 0, self.dataset
            split = SPLITS.index(self._split)
            seed = rng.key(self._seed, "augment", split, epoch, -2, stream) >> 1
            info = worker.WorkerInfo(id=stream, num_workers=self._count, seed=seed, dataset=dataset)
            reading = _Reading(epoch, start, self._read(epoch, stream, start), info)
            self._readings[place] = reading
        return range(reading.position * self._count + stream, sample_id, self._count)

    def __getitem__(self, sample_id: int) -> Any:
        position, stream = divmod(sample_id, self._count)
        reading = self._readings[os.getpid(), stream]
        before = worker._worker_info  # which PyTorch sets in loader workers
        worker._worker_info = reading.info
        try:
            if get_worker_info() is not reading.info:
                raise RuntimeError(f"torch {torch.__version__}: get_worker_info reads elsewhere")
            sample = next(reading.samples)
        except StopIteration:
            raise StreamEnd(
                f"data.{self._split}: expected {self._samples} samples in each epoch, got the end "
                f"of stream {stream} of {self._count} of {type(self.dataset).__name__} after "
                f"{position}; lower data.samples_per_epoch, correct __len__, or cut the data set "
                "by get_worker_info() into equal streams"
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
    """Return the number of samples of an iterable data set; without a length, count them once."""
    if hasattr(type(dataset), "__len__"):
        return len(dataset)
    if split == "train":  # a pass over it may never end
        raise InputError(
            f"data.samples_per_epoch: expected an integer for {type(dataset).__name__}, which has "
            "no __len__, got none; set the number of samples of an epoch"
        )
    whole, ids = StreamDataset(dataset, split, 1, 0, 0), itertools.count()
    with rng.restored(), suppress(StreamEnd):
        for sample_id in ids:
            whole.before(0, sample_id)
            whole[sample_id]
    return next(ids) - 1


class StreamSource(Source):
    """Streams as a function from positions to batches."""

    def samples(self, epoch: int, ids: Ids, rows: Ids) -> list[Any]:
        samples = []
        for sample_id in ids.tolist():
            for each in (*self.dataset.before(epoch, sample_id), sample_id):
                one = np.array([each])
                [sample] = super().samples(epoch, one, one)
            samples.append(sample)
        return samples


class StreamOrder:
    """The order of samples in streams: each shard of a batch comes from the next stream in turn.

    If `streams` is a multiple of the shards, a process reads only the streams of its own shards.
    """

    def __init__(self, streams: int, batch_size: int, shards: int, steps_per_epoch: int) -> None:
        self._streams, self._shards, self._size = streams, shards, batch_size // shards
        self.steps_per_epoch = steps_per_epoch
        self.samples_per_epoch = steps_per_epoch * batch_size

    def position(self, epoch: int, index: int) -> Position:
        units = np.arange(index * self._shards, (index + 1) * self._shards)
        rounds, streams = np.divmod(units, self._streams)
        positions = rounds[:, None] * self._size + np.arange(self._size)
        return Position(epoch, (positions * self._streams + streams[:, None]).reshape(-1))

    def workers(self, wanted: int, processes: int) -> int:
        """Return a divisor of the streams of a process, so that one loader worker reads each."""
        mine = self._streams // processes if self._streams % processes == 0 else 1
        return max((n for n in range(1, wanted + 1) if mine % n == 0), default=0)


def whole_steps(samples: int, streams: int, batch_size: int, shards: int) -> int:
    """Return the number of full steps in streams of equal length with `samples` in total."""
    slices = samples // streams // (batch_size // shards)
    return slices * streams // shards
