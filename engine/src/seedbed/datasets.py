"""What data sets are made with: names of the splits, folds, a number for each sample.

Public: a project may import it.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.errors import InputError, one_line
from seedbed.names import SPLITS

__all__ = ["SPLITS", "Fold", "values_of"]

Ids = NDArray[np.int64]


class Fold(Dataset[Any]):
    """The training or validation samples of one fold of a map-style data set,
    unchanged.

    So augmentation is that of the data set: validate on a fold of one without.
    Over all folds, each sample is in the validation part once; fold sizes differ by at
    most one. `part` is train or validation, `fold` the index of the held-out fold, from
    0, and `seed` the seed of the split stream. `indices`, int64 (n,), are the samples
    of this part.
    """

    def __init__(
        self, dataset: Any, part: str, fold: int, folds: int, seed: int
    ) -> None:
        n = len(dataset)
        if not 2 <= folds <= n:
            raise InputError(
                f"data.folds: expected from 2 to {n} for {n} samples, got {folds}"
            )
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
        # AttributeError if missing, so that hasattr is False here, too
        load = self.dataset.fetch
        return lambda ids, draws: load(self.indices[ids], draws)

    @property
    def sha256(self) -> Any:
        return self.dataset.sha256


def values_of(dataset: Any, name: str) -> NDArray[np.float64]:
    """Return what a data set's attribute or method has for each sample, as float64
    (n,), or (n, ...) where that is several numbers, such as the labels of an image.

    For a part (`Fold`, torch's `Subset`), the whole data set may have the attribute.
    """
    # A part may pass on what the whole data set has, for all of its samples.
    is_own = hasattr(type(dataset), name) or name in getattr(dataset, "__dict__", ())
    is_part = hasattr(dataset, "indices") and hasattr(dataset, "dataset")
    if is_part and not is_own:
        of_all = values_of(dataset.dataset, name)
        return np.take(of_all, np.asarray(dataset.indices), axis=0)
    attribute = getattr(dataset, name, np.nan)
    values = attribute() if callable(attribute) else attribute
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"data.sampler: expected numbers in {name} of {type(dataset).__name__}, got"
            f" {one_line(error)}"
        ) from error
    if numbers.shape[:1] != (len(dataset),):
        raise InputError(
            f"data.sampler: expected numbers for each of {len(dataset)} samples in"
            f" {name} of {type(dataset).__name__}, got an array of shape"
            f" {numbers.shape}"
        )
    return numbers
