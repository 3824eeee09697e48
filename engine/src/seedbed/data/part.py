"""Parts of another data set: for validation out of what is there for training, and folds."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.errors import InputError

PARTS = ("train", "validation")


class _Chosen(Dataset[Any]):
    """The training or the validation samples of a data set.

    Attributes:
        dataset: the whole data set.
        indices: int64 (n,), the samples in it.
    """

    def __init__(
        self, dataset: Any, part: str, held_out: NDArray[np.int64], rest: NDArray[np.int64]
    ) -> None:
        if part not in PARTS:
            raise InputError(f"data: expected part {' or '.join(PARTS)}, got {part}; correct it")
        self.dataset = dataset
        self.indices = rest if part == "train" else held_out

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        """Return a sample as the whole data set returns it."""
        return self.dataset[int(self.indices[index])]

    @property
    def fetch(self) -> Callable[[NDArray[np.int64], rng.Draws | None], Any]:
        """Return what loads whole batches, if the whole data set has a method `fetch`."""
        load = self.dataset.fetch  # AttributeError where it has none: then this has none either
        return lambda ids, draws: load(self.indices[ids], draws)

    @property
    def sha256(self) -> Any:
        """Return the digests of the whole data set, if it has some."""
        return self.dataset.sha256


class Part(_Chosen):
    """The training or the validation samples of a map-style data set that has both in one."""

    def __init__(self, dataset: Any, part: str, validation_samples: int, seed: int) -> None:
        """Choose the samples.

        Args:
            dataset: map-style; its samples stay as they are.
            part: train or validation; together they are the whole data set.
            validation_samples: how many are for validation.
            seed: of the split stream.
        """
        n = len(dataset)
        if not isinstance(validation_samples, int) or not 1 <= validation_samples < n:
            raise InputError(
                f"data: expected validation_samples from 1 to {n - 1}, the data set having {n}, "
                f"got {validation_samples}; take some for validation and leave some"
            )
        held_out, rest = np.split(_order(seed, n), [validation_samples])
        super().__init__(dataset, part, held_out, rest)


class Fold(_Chosen):
    """The training or the validation samples of one fold of k-fold cross-validation.

    Over all folds each sample is validated once; the folds' sizes differ by one sample at most.
    """

    def __init__(self, dataset: Any, part: str, fold: int, folds: int, seed: int) -> None:
        """Choose the samples.

        Args:
            dataset: map-style; its samples stay as they are.
            part: train or validation; together they are the whole data set.
            fold: which of the folds is held out, from 0.
            folds: how many there are.
            seed: of the split stream.
        """
        n = len(dataset)
        if not isinstance(folds, int) or not 2 <= folds <= n:
            raise InputError(
                f"data.folds: expected from 2 to {n}, the data set having {n} samples, got {folds};"
                " try data.folds=5"
            )
        if not isinstance(fold, int) or not 0 <= fold < folds:
            raise InputError(
                f"data.fold: expected from 0 to {folds - 1}, there being {folds} folds, got {fold};"
                " try data.fold=0"
            )
        pieces = np.array_split(_order(seed, n), folds)
        rest = np.concatenate([*pieces[:fold], *pieces[fold + 1 :]])
        super().__init__(dataset, part, pieces[fold], rest)


def _order(seed: int, n: int) -> NDArray[np.int64]:
    return rng.permutation(rng.key(seed, "split"), n)
