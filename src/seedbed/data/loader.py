"""Batches as a pure function of (epoch, sample ids), loaded here or in worker processes.

What is loaded does not depend on who loads it: order and randomness come with the position, the
generators are seeded before each sample, and every process loads with one thread, but for data sets
of which it is known that threads change no bit.
"""

import atexit
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, default_collate

from seedbed import determinism, offline, rng, signals
from seedbed.data import pipe
from seedbed.data.tensors import map_tensors
from seedbed.names import SPLITS


class Position(NamedTuple):
    """Which samples, and in which epoch: all that a batch depends on."""

    epoch: int
    ids: NDArray[np.int64]


class Batch(NamedTuple):
    """Samples stacked along the first dimension of every tensor."""

    ids: torch.Tensor
    inputs: Any
    targets: Any


class Source(Dataset[Batch]):
    """A data set seen as a function from positions to batches."""

    def __init__(
        self,
        dataset: Any,
        split: str,
        seed: int,
        collate: Callable[[list[Any]], Any] | None = None,
        seeded: bool = True,
    ) -> None:
        """Wrap a data set.

        Args:
            dataset: map-style; with a method `fetch(ids, draws)` it loads whole batches.
                If it says `same_bits_with_any_threads` (itself or its class, not one that it
                derives from), it gets as many as the process has.
            split: one of SPLITS; samples of different splits have different randomness.
            seed: of the augment stream.
            collate: makes a batch of a list of samples; torch's default_collate if None.
            seeded: whether global generators are seeded before each sample.
        """
        self.dataset = dataset
        self._split = SPLITS.index(split)
        self._seed = seed
        self._collate = collate or default_collate
        self._seeded = seeded
        # Its word is on what it does itself: not on a collate function, or a class derived from it.
        own = vars(type(dataset)) | getattr(dataset, "__dict__", {})
        batches = collate is None or hasattr(dataset, "fetch")
        self._any_threads = batches and own.get("same_bits_with_any_threads") is True

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: Position) -> Batch:
        """Load a batch: here as in a loader worker, which has one thread."""
        if self._any_threads:
            return self._load(position)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._load(position)
        finally:
            torch.set_num_threads(before)

    def _load(self, position: Position) -> Batch:
        epoch, ids = position
        training = self._split == 0
        # Evaluation draws the same numbers every time: what is measured stays the same.
        place = (self._split, epoch if training else 0)
        if hasattr(self.dataset, "fetch"):
            key = rng.key(self._seed, "augment", epoch)
            draws = rng.Draws(key, ids) if training else None
            self._seed_globals(*place, -1, int(ids[0]))
            inputs, targets = self.dataset.fetch(ids, draws)
        else:
            samples = [self._sample(place, int(i)) for i in ids]
            self._seed_globals(*place, -1, int(ids[0]))
            inputs, targets = self._collate(samples)
        return Batch(torch.from_numpy(ids), inputs, targets)

    def _sample(self, place: tuple[int, int], sample_id: int) -> Any:
        self._seed_globals(*place, sample_id)
        return self.dataset[sample_id]

    def _seed_globals(self, *position: int) -> None:
        if self._seeded:
            rng.seed_globals(rng.key(self._seed, "augment", *position))


@dataclass(frozen=True)
class Loading:
    """How batches are loaded; nothing of it can change what is loaded."""

    num_workers: int = 0
    persistent_workers: bool = True
    prefetch_factor: int = 2
    start_method: str = "fork"
    pin_memory: bool = False


def training_positions(
    n: int, batch_size: int, seed: int, first_step: int, last_step: int
) -> Iterator[Position]:
    """Yield the positions of steps first_step + 1 to last_step.

    Each epoch is a permutation of its own; what does not fill a batch at its end is left out, so
    that all batches have the same shape.
    """
    batches_per_epoch = n // batch_size
    for step in range(first_step, last_step):
        epoch, index = divmod(step, batches_per_epoch)
        ids = _order(seed, epoch, n)[index * batch_size : (index + 1) * batch_size]
        yield Position(epoch, ids)


def evaluation_positions(n: int, batch_size: int) -> list[Position]:
    """Return the positions that cover a data set once, in the order of the samples."""
    return [Position(0, np.arange(i, min(i + batch_size, n))) for i in range(0, n, batch_size)]


def load(
    source: Source,
    positions: Iterable[Position],
    how: Loading,
    preset: Mapping[str, Any],
) -> Iterator[Batch]:
    """Yield a batch for each position, in their order.

    With persistent workers the same worker processes serve all positions; without, each epoch
    gets new ones.
    """
    if how.num_workers == 0:
        for position in positions:
            batch = source[position]
            yield map_tensors(torch.Tensor.pin_memory, batch) if how.pin_memory else batch
        return
    groups = [positions] if how.persistent_workers else _by_epoch(positions)
    for group in groups:
        yield from _workers(source, group, how, preset)


def _by_epoch(positions: Iterable[Position]) -> Iterator[Iterable[Position]]:
    return (group for _, group in itertools.groupby(positions, key=lambda p: p.epoch))


def _workers(
    source: Source, positions: Iterable[Position], how: Loading, preset: Mapping[str, Any]
) -> Iterator[Batch]:
    no_more, stop_printing = multiprocessing.Pipe(duplex=False)
    _loading.add(stop_printing)
    loader: DataLoader[Batch] = DataLoader(
        source,
        sampler=positions,
        batch_size=None,
        num_workers=how.num_workers,
        collate_fn=_as_it_is,
        worker_init_fn=partial(_start_worker, preset, no_more),
        prefetch_factor=how.prefetch_factor,
        multiprocessing_context=how.start_method,
        pin_memory=how.pin_memory,
        # The base seed of the workers' generators, which every sample keys again.
        generator=torch.Generator().manual_seed(0),
    )
    try:
        yield from _start(loader, how.start_method)
    finally:
        stop_printing.send(None)


def _start(loader: DataLoader[Batch], start_method: str) -> Iterator[Batch]:
    """Start loader workers with stop signals held back: while they import, none can ignore them.

    What serves them inherits that for good: a forkserver, and a resource tracker.
    """
    with signals.held():
        if start_method != "fork":
            resource_tracker.ensure_running()  # which lets SIGINT and SIGTERM through again
        with signals.held():
            return iter(loader)


_loading: WeakSet[Connection] = WeakSet()


@atexit.register
def _stop_loading() -> None:
    """End loader workers before Python waits for them: they ignore the signal it would send."""
    for stop_printing in _loading:
        stop_printing.send(None)


def _as_it_is(batch: Any) -> Any:
    """Keep a DataLoader from making tensors of what else is in a batch."""
    return batch


def _start_worker(preset: Mapping[str, Any], no_more: Connection, _worker_id: int) -> None:
    """Set up a loader worker: the preset's flags, and signals left to the training process.

    Ctrl-C in a terminal, and a cluster's SIGTERM, reach the whole process group; the workers must
    live until the training process has saved its checkpoint, and end with it.
    """
    signals.ignore()
    threading.Thread(target=_end_in_time, args=[no_more], daemon=True).start()
    offline.enforce()
    determinism.apply(preset, threads=1)
    pipe.send_small_tensors_as_bytes()


def _end_in_time(no_more: Connection) -> None:
    """End this process when its parent was killed, or waits for it although it loads no more.

    It could wait forever to hand over a batch. A forkserver outlives the parent, and what else it
    forked holds its end of the pipe that `join` waits for; so both are looked at. The parent waits
    at its own end, if it did not load all there was or an exception keeps the loader alive.
    """
    parent, pid = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == pid and (parent is None or parent.is_alive()):
        if no_more.poll(1):  # and nobody reads it: it is for all workers
            time.sleep(1)  # PyTorch ends them in order, if it can
            os._exit(0)
    os._exit(1)


@lru_cache(maxsize=2)
def _order(seed: int, epoch: int, n: int) -> NDArray[np.int64]:
    return rng.permutation(rng.key(seed, "order", epoch), n)
