"""Folds of a data set, for cross-validation or to hold out a validation set."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.data.positions import Ids
from seedbed.errors import InputError


class Fold(Dataset[Any]):
    """The training or validation samples of one fold of a map-style data set, unchanged.

    So augmentation is that of the data set: validate on a fold of one without.
    Over all folds, each sample is in the validation part once; fold sizes differ by at most one.
    `part` is train or validation, `fold` the index of the held-out fold, from 0, and `seed` the
    seed of the split stream. `indices`, int64 (n,), are the samples of this part.
    """

    def __init__(self, dataset: Any, part: str, fold: int, folds: int, seed: int) -> None:
        n = len(dataset)
        if not 2 <= folds <= n:
            raise InputError(f"data.folds: expected from 2 to {n} for {n} samples, got {folds}")
        if not 0 <= fold < folds:
            raise InputError(f"data.fold: expected from 0 to {folds - 1}, got {fold}")
        if part not in ("train", "validation"):
            raise InputError(f"data: expected part train or validation, got {part}")
        order = np.array_split(rng.permutation(rng.key(seed, "split"), n), folds)
        held_out = order.pop(fold)
        self.dataset = dataset
        self.indices: Ids = np.concatenate(order) if part == "train" else held_out

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    @property
    def fetch(self) -> Callable[[Ids, rng.Draws | None], Any]:
        """The loader of whole batches, if the whole data set has a method `fetch`."""
        load = self.dataset.fetch  # AttributeError if missing, so that hasattr is False here, too
        return lambda ids, draws: load(self.indices[ids], draws)

    @property
    def sha256(self) -> Any:
        return self.dataset.sha256
