"""Seeded loading for a training loop of one's own.

    loader = seeded_loader(dataset, batch_size=64, seed=0, workers=2)
    for epoch in range(10):
        for inputs, targets in loader: ...

Which samples a batch has, and what is drawn while they are loaded, is a function of (seed, step)
alone: the same for any number of loader workers, and after a resume.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from seedbed import rng
from seedbed.data.positions import Position, Shuffled
from seedbed.data.source import Source
from seedbed.errors import InputError


def seeded_loader(
    dataset: Any,
    batch_size: int,
    seed: int,
    workers: int = 0,
    *,
    collate: Callable[[list[Any]], Any] | None = None,
    drop_last: bool = True,
    rank: int | None = None,
    world_size: int | None = None,
    **options: Any,
) -> "SeededLoader":
    """Return a DataLoader whose batches depend on the seed and the step alone.

    Each epoch has an order of its own. Before each sample is loaded, and before each batch is
    handed out, the global generators of random, NumPy and torch are seeded: what a data set or a
    model draws depends on the sample's epoch, or on the step.

    Args:
        dataset: map-style; what it returns for a sample may be anything that `collate` takes.
        batch_size: samples of a step, over all processes; each gets an equal slice.
        seed: 0 to 2**63 - 1.
        workers: loader processes; 0 loads in this one.
        collate: makes a batch of a list of samples; torch's default_collate if None.
        drop_last: leave out what does not fill a batch at the end of an epoch.
        rank, world_size: of this process; by default those of torch.distributed when an epoch
            begins, or of torchrun's variables.
        options: more of DataLoader's: pin_memory, prefetch_factor, worker_init_fn, ...

    Raises:
        InputError: the data set fills no batch, or the processes get no equal slices of one.
    """
    given = _given(rank, world_size)
    if not 1 <= batch_size <= len(dataset):  # of no batch, an epoch would end at once
        raise InputError(
            f"batch_size: expected an integer from 1 to {len(dataset)}, the number of samples, got "
            f"{batch_size!r}; choose another"
        )
    order = _Order(len(dataset), batch_size, seed, drop_last, given)
    return SeededLoader(dataset, order, seed, workers, collate, options)


class SeededLoader(DataLoader[Any]):
    """A DataLoader over the batches of `seeded_loader`; an epoch for each `iter`.

    Attributes:
        step: the last one whose batch was handed out, counted from 1 over all epochs.
    """

    def __init__(
        self,
        dataset: Any,
        order: "_Order",
        seed: int,
        workers: int,
        collate: Callable[[list[Any]], Any] | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(
            _Batches(dataset, seed, collate),
            batch_size=None,
            sampler=order,
            num_workers=workers,
            collate_fn=_as_it_is,
            # Of the workers' base seed, in whose place every sample is seeded.
            generator=torch.Generator().manual_seed(0),
            **{"persistent_workers": workers > 0, **options},
        )
        self._order = order
        self._dropout_seed = seed
        self.step = 0

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of the next epoch; after `seek`, those that are left of one."""
        first = self._order.next_step
        for step, batch in enumerate(super().__iter__(), first + 1):
            # An epoch that is left early goes on in the next one: steps have no gaps.
            self.step = self._order.next_step = step
            # As in training by train.py; a loader in this process has drawn meanwhile.
            seed_step(self._dropout_seed, step, self._order.group()[0])
            yield batch

    def seek(self, step: int) -> None:
        """Let the next epoch begin after a step, counted from 1 over all epochs.

        Args:
            step: the last one that was trained, such as that of a checkpoint; 0: the beginning.
        """
        if step < 0:
            raise InputError(f"step: expected an integer >= 0, got {step!r}; name the last step")
        self._order.seek(step)
        self.step = step

    def state_dict(self) -> dict[str, int]:
        """Return where the loader stands; Lightning keeps it in its checkpoints."""
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Seek where a loader stood."""
        self.seek(int(state["step"]))

    def set_epoch(self, epoch: int) -> None:
        """Let the next epoch be this one, counted from 0, unless `seek` has said where it begins.

        Trainers of other libraries call it before each epoch.
        """
        self._order.set_epoch(epoch)

    def ids(self, step: int) -> torch.Tensor:
        """Return the ids of the samples that this process gets in a step: int64 (B,).

        Args:
            step: counted from 1 over all epochs.
        """
        if step < 1:
            raise InputError(
                f"step: expected an integer >= 1, got {step!r}; count steps from 1, such as by "
                "enumerate(loader, 1)"
            )
        return torch.tensor(self._order.position(step - 1).ids)  # a copy: the order is kept


def seed_step(seed: int, step: int, rank: int = 0) -> None:
    """Seed the global generators for a step, as `seeded_loader` does when it hands out a batch.

    For loops that fetch batches ahead, or draw before they fetch: call it before the forward pass.
    """
    rng.seed_globals(rng.key(seed, "dropout", step, rank))


class _Order(Sampler[Position]):
    """The positions of the steps of an epoch, which begins where it was told to."""

    def __init__(
        self,
        n: int,
        batch_size: int,
        seed: int,
        drop_last: bool,
        given: tuple[int, int] | None,
    ) -> None:
        self._order = Shuffled(n, batch_size, seed, drop_last)
        self._batch_size, self._drop_last, self._given = batch_size, drop_last, given
        self._batches = self._order.steps_per_epoch
        self.group()
        self.next_step = 0  # the steps before the next one, over all epochs
        self._is_sought = False

    def __len__(self) -> int:
        return self._batches

    def group(self) -> tuple[int, int]:
        """Return this process's rank and how many there are; trainers may start them late.

        Raises:
            InputError: they cannot get equal slices of a batch.
        """
        rank, world_size = self._given or process_group()
        if self._batch_size % world_size or (world_size > 1 and not self._drop_last):
            raise InputError(
                f"batch_size: expected equal slices for {world_size} processes, got "
                f"{self._batch_size} with drop_last={self._drop_last}; choose a multiple, and "
                "drop_last=True"
            )
        return rank, world_size

    def __iter__(self) -> Iterator[Position]:
        # Nothing happens before the first one is asked for: DataLoader makes iterators in vain.
        first = self.next_step
        last = (first // self._batches + 1) * self._batches
        self._is_sought = False
        for step in range(first, last):
            yield self.position(step)

    def seek(self, step: int) -> None:
        """Begin after a step."""
        self.next_step, self._is_sought = step, True

    def set_epoch(self, epoch: int) -> None:
        """Begin with an epoch."""
        if not self._is_sought:
            self.next_step = epoch * self._batches

    def position(self, step: int) -> Position:
        """Return which samples this process loads, `step` steps after the first one."""
        (rank, world_size), (epoch, index) = self.group(), divmod(step, self._batches)
        part = self._batch_size // world_size
        return self._order.position(epoch, index).cut(rank * part, (rank + 1) * part)


class _Batches(Dataset[Any]):
    """A data set as a function from positions to batches, as the data set's collate makes them."""

    def __init__(self, dataset: Any, seed: int, collate: Callable[[list[Any]], Any] | None) -> None:
        self._whole = hasattr(dataset, "fetch")  # it loads whole batches itself
        wrapped = None if self._whole else _Whole(collate or default_collate)
        self._source = Source(dataset, "train", seed, wrapped)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, position: Position) -> Any:
        batch = self._source[position]
        return (batch.inputs, batch.targets) if self._whole else batch.inputs


class _Whole:
    """A collate function whose result is no pair of inputs and targets, but anything."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: list[Any]) -> tuple[Any, None]:
        return self._collate(samples), None


def _as_it_is(batch: Any) -> Any:
    """Keep DataLoader from making tensors of what else is in a batch."""
    return batch


def process_group() -> tuple[int, int]:
    """Return this process's rank and how many train together, by torch.distributed or torchrun."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    rank, world_size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    is_started = rank.isdecimal() and world_size.isdecimal()
    return (int(rank), int(world_size)) if is_started else (0, 1)


def _given(rank: int | None, world_size: int | None) -> tuple[int, int] | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None or not 0 <= rank < world_size:
        # A slice beyond the batch would be empty.
        raise InputError(
            f"rank: expected an integer from 0 to world_size - 1, got {rank} of {world_size}; give "
            "both or none"
        )
    return rank, world_size
