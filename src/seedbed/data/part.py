"""A fixed part of another data set: for validation out of what is there for training."""

from typing import Any

import numpy as np
from torch.utils.data import Dataset

from seedbed import rng
from seedbed.errors import InputError

PARTS = ("train", "validation")


class Part(Dataset[Any]):
    """The training or the validation samples of a map-style data set that has both in one."""

    def __init__(
        self, dataset: Dataset[Any], part: str, validation_samples: int, seed: int
    ) -> None:
        """Choose the samples.

        Args:
            dataset: map-style; its samples stay as they are.
            part: train or validation; together they are the whole data set.
            validation_samples: how many are for validation.
            seed: of the split stream.
        """
        n = len(dataset)  # type: ignore[arg-type]
        if part not in PARTS:
            raise InputError(f"data: expected part {' or '.join(PARTS)}, got {part}; correct it")
        if not isinstance(validation_samples, int) or not 1 <= validation_samples < n:
            raise InputError(
                f"data: expected validation_samples from 1 to {n - 1}, the data set having {n}, "
                f"got {validation_samples}; take some for validation and leave some"
            )
        order = rng.permutation(rng.key(seed, "split"), n)
        held_out, rest = np.split(order, [validation_samples])
        self._dataset = dataset
        self._ids = rest if part == "train" else held_out

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, index: int) -> Any:
        """Return a sample as the whole data set returns it."""
        return self._dataset[int(self._ids[index])]
