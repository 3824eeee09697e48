"""Parts of another data set: for validation out of what is there for training, and folds."""

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.data.positions import Ids
from seedbed.errors import InputError


class _Chosen(Dataset[Any]):
    """The training or the validation samples of a data set, whose samples stay as they are.

    Attributes:
        dataset: the whole, map-style data set.
        indices: int64 (n,), the samples in it.
    """

    def __init__(self, dataset: Any, part: str, seed: int, first: int, count: int) -> None:
        order = rng.permutation(rng.key(seed, "split"), len(dataset))
        held_out = slice(first, first + count)
        if part not in ("train", "validation"):
            raise InputError(f"data: expected part train or validation, got {part}")
        self.dataset = dataset
        self.indices: Ids = np.delete(order, held_out) if part == "train" else order[held_out]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[int(self.indices[index])]

    @property
    def fetch(self) -> Callable[[Ids, rng.Draws | None], Any]:
        """Return what loads whole batches, if the whole data set has a method `fetch`."""
        load = self.dataset.fetch  # AttributeError where it has none: then this has none either
        return lambda ids, draws: load(self.indices[ids], draws)

    @property
    def sha256(self) -> Any:
        """Return the digests of the whole data set, if it has some."""
        return self.dataset.sha256


class Part(_Chosen):
    """The training or the validation samples of a data set that has both in one.

    `part` is train or validation, `seed` that of the split stream.
    """

    def __init__(self, dataset: Any, part: str, validation_samples: int, seed: int) -> None:
        if not 1 <= validation_samples < len(dataset):
            raise InputError(
                f"data: expected validation_samples from 1 to {len(dataset) - 1}, got "
                f"{validation_samples}"
            )
        super().__init__(dataset, part, seed, 0, validation_samples)


class Fold(_Chosen):
    """The training or the validation samples of one fold of k-fold cross-validation.

    Over all folds each sample is validated once; the folds' sizes differ by one sample at most.
    `part` is train or validation, `fold` the one that is held out, from 0, `seed` that of the split
    stream.
    """

    def __init__(self, dataset: Any, part: str, fold: int, folds: int, seed: int) -> None:
        n = len(dataset)
        if not 2 <= folds <= n:
            raise InputError(f"data.folds: expected from 2 to {n} for {n} samples, got {folds}")
        if not 0 <= fold < folds:
            raise InputError(f"data.fold: expected from 0 to {folds - 1}, got {fold}")
        size, larger = divmod(n, folds)  # of the first folds, some have one more
        first = fold * size + min(fold, larger)
        super().__init__(dataset, part, seed, first, size + (fold < larger))
