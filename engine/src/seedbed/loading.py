"""Seeded data loading for a user-defined training loop.

    loader = seeded_loader(dataset, batch_size=64, seed=0, workers=2)
    for epoch in range(10):
        for inputs, targets in loader: ...

The samples of a batch and the random draws while they are loaded are a function of
(seed, step)
alone: the same for any number of loader workers, and after a resume.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from seedbed import rng
from seedbed.config.settings import MAX_SEED
from seedbed.errors import InputError
from seedbed.pipeline import deaths
from seedbed.pipeline.positions import Position, Shuffled, positions
from seedbed.pipeline.source import Source
from seedbed.pipeline.workers import identity

_SETTINGS = ("workers", "prefetch_factor", "batch_size")  # arguments, see `deaths`

__all__ = ["SeededLoader", "seed_step", "seeded_loader"]


def seeded_loader(
    dataset: Any,
    batch_size: int,
    seed: int,
    workers: int = 0,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    drop_last: bool = True,
    **options: Any,
) -> "SeededLoader":
    """Return a DataLoader whose batches depend on the seed and the step alone.

    Before each sample is loaded, and before each batch is handed out, the global
    generators of random, NumPy and torch are seeded.

    Args:
        dataset: map-style; its samples may be anything that `collate` takes.
        batch_size: samples of a step, over all ranks of torch.distributed or torchrun;
            each rank gets an equal slice.
        seed: 0 to 2**63 - 1.
        workers: number of loader workers; 0 loads in this process.
        collate: makes a batch of a list of samples; torch's default_collate if None.
        drop_last: drop an incomplete batch at the end of an epoch.
        options: other arguments of DataLoader: pin_memory, prefetch_factor,
        worker_init_fn, ...

    Raises:
        InputError: batch size or seed out of range, or (in `iter`) unequal slices of
        the ranks.
    """
    # without a batch, an epoch would end at once
    if not 1 <= batch_size <= len(dataset):
        raise InputError(
            f"batch_size: expected from 1 to {len(dataset)} samples, got {batch_size}"
        )
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise InputError(
            f"seed: expected an integer from 0 to {MAX_SEED}, got {seed!r}"
        )
    return SeededLoader(
        _Batches(dataset, "train", seed, collate),
        batch_size=None,
        sampler=_Steps(len(dataset), batch_size, seed, drop_last),
        num_workers=workers,
        collate_fn=identity,
        # For the workers' base seed alone: the generators are seeded again before each
        # sample.
        generator=torch.Generator().manual_seed(0),
        **{"persistent_workers": workers > 0, **options},
    )


class SeededLoader(DataLoader[Any]):
    """The DataLoader of `seeded_loader`; each `iter` is one epoch."""

    sampler: "_Steps"
    dataset: "_Batches"
    _is_sought = False

    @property
    def step(self) -> int:
        """The last step whose batch was returned, counted from 1 over all epochs."""
        return self.sampler.done

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of the next epoch, or the rest of an unfinished one,
        without a gap."""
        self._is_sought = False
        for step, batch in enumerate(self._awaited(), self.step + 1):
            self.sampler.done = step
            # As in train.py; with workers=0, loading has drawn from the same
            # generators.
            seed_step(self.dataset.seed, step, process_group()[0])
            yield batch

    def _awaited(self) -> Iterator[Any]:
        batches = deaths.begun(super().__iter__, _SETTINGS)
        while True:
            try:
                batch = deaths.next_of(batches, _SETTINGS)
            except StopIteration:
                return
            yield batch

    def seek(self, step: int) -> None:
        """Start the next epoch after a step, such as that of a checkpoint; 0 is the
        beginning."""
        if step < 0:
            raise InputError(f"step: expected an integer >= 0, got {step}")
        self.sampler.done = step
        self._is_sought = True

    def state_dict(self) -> dict[str, int]:
        """Return the step that was reached; Lightning saves it in its checkpoints."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.seek(int(state["step"]))

    def set_epoch(self, epoch: int) -> None:  # trainers of other libraries call it
        """Make the next epoch this one, counted from 0, unless `seek` has set the
        step."""
        if not self._is_sought:
            self.sampler.done = epoch * len(self)

    def ids(self, step: int) -> torch.Tensor:
        """Return the ids of this process's samples of a step, counted from 1: int64
        (B,)."""
        if step < 1:  # it would select another batch
            raise InputError(
                f"step: expected an integer >= 1, got {step}; enumerate(loader, 1)"
            )
        # a copy
        return torch.tensor(self.sampler.position(*divmod(step - 1, len(self))).ids)


class _Steps(Shuffled):
    """The positions of the steps of an epoch, starting after the step `done`."""

    done = 0  # steps, over all epochs

    def __len__(self) -> int:
        return self.steps_per_epoch

    def __iter__(self) -> Iterator[Position]:
        return positions(self, self.done, (self.done // len(self) + 1) * len(self))

    # of the samples that this rank loads
    def position(self, epoch: int, index: int) -> Position:
        rank, count = process_group()  # trainers may initialize it late
        is_uneven = (
            self._batch_size % count or self.samples_per_epoch % self._batch_size
        )
        if count > 1 and is_uneven:
            raise InputError(
                f"batch_size: expected equal slices for {count} processes, got"
                f" {self._batch_size} of {self.samples_per_epoch} samples; choose a"
                " multiple, with drop_last=True"
            )
        size = self._batch_size // count
        return super().position(epoch, index).cut(rank * size, (rank + 1) * size)


class _Batches(Source):
    """A data set as a function from positions to batches of any kind."""

    __getitem__ = Source.load


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed the global generators for a step, as `seeded_loader` does before it returns
    a batch.

    For loops that fetch batches ahead, or draw before they fetch: call it before the
    forward pass.
    """
    rng.seed_globals(rng.key(seed, "dropout", step, rank))


def process_group() -> tuple[int, int]:
    """Return this process's rank and the world size, from torch.distributed or
    torchrun."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    rank, count = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return (int(rank), int(count)) if rank.isdecimal() and count.isdecimal() else (0, 1)
