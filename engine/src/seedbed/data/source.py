"""A data set as a function from positions to batches.

Order and randomness come with the position and the generators are seeded before each sample, so
what is loaded does not depend on who loads it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, default_collate

from seedbed import rng
from seedbed.data.positions import Ids, Position
from seedbed.data.tensors import map_tensors
from seedbed.errors import InputError
from seedbed.names import SPLITS


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
        one_thread: bool = True,
    ) -> None:
        """Wrap a data set.

        Args:
            dataset: map-style; with a method `fetch(ids, draws)` it loads whole batches.
            split: one of SPLITS; samples of different splits have different randomness.
            seed: of the augment stream.
            collate: makes a batch of a list of samples; torch's default_collate if None.
            seeded: whether global generators are seeded before each sample.
            one_thread: load with one thread in the training process too, as loader workers do.
        """
        self.dataset = dataset
        self._split = SPLITS.index(split)
        self._seed = seed
        self._collate = collate
        self._seeded = seeded
        self._one_thread = one_thread

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, position: Position) -> Batch:
        """Load a batch."""
        if not self._one_thread:
            return self._load(position)
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self._load(position)
        finally:
            torch.set_num_threads(before)

    def _load(self, position: Position) -> Batch:
        epoch, ids, repeats = position
        training = self._split == 0
        # Evaluation draws the same numbers every time: what is measured stays the same.
        place = (self._split, epoch if training else 0)
        rows = ids if repeats is None else ids + repeats * len(self)
        whole = hasattr(self.dataset, "fetch")
        samples = [] if whole else self._samples(place, ids, rows)
        self._seed_globals(*place, -1, *position.sample(0))
        if whole:
            key = rng.key(self._seed, "augment", epoch)
            draws = rng.Draws(key, ids, rows) if training else None
            inputs, targets = self._pair(self.dataset.fetch(ids, draws), "a batch from fetch")
        elif self._collate is not None:
            inputs, targets = self._pair(self._collate(samples), "a batch from its collate")
        else:
            inputs, targets = default_collate([self._pair(each, "samples") for each in samples])
        if whole or self._collate is not None:
            # These may be the data set's own tensors, which models may change in place.
            inputs, targets = map_tensors(torch.Tensor.clone, (inputs, targets))
        return Batch(torch.from_numpy(ids), inputs, targets)

    def _samples(self, place: tuple[int, int], ids: Ids, rows: Ids) -> list[Any]:
        """Load samples; before each, the generators are seeded by its place and row.

        Args:
            place: number of the split, and epoch.
            rows: int64 (B,), the ids, and other numbers for samples that come again in the epoch.
        """
        if not self._seeded:
            return [self.dataset[i] for i in ids.tolist()]
        samples = []
        for index, row in zip(ids.tolist(), rows.tolist(), strict=True):
            rng.seed_cpu(rng.key(self._seed, "augment", *place, row))
            samples.append(self.dataset[index])
        return samples

    def _pair(self, found: Any, what: str) -> Any:
        """Return what is a pair: a mapping of two keys would be taken apart as well.

        Raises:
            InputError: it is something else.
        """
        if isinstance(found, tuple | list) and len(found) == 2:
            return found
        got = type(found).__name__ if found is not None else "nothing"
        got += f" of {len(found)}" if isinstance(found, tuple | list) else ""
        raise InputError(
            f"data.{SPLITS[self._split]}: expected {what} to be (input, target), got {got} from "
            f"{type(self.dataset).__name__}; return a pair, or let data.collate make one: it gets "
            "the list of samples"
        )

    def _seed_globals(self, *position: int) -> None:
        if self._seeded:
            rng.seed_globals(rng.key(self._seed, "augment", *position))
