"""Samplers: which samples each batch of an epoch is made of (`data.sampler`)."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from seedbed.errors import InputError
from seedbed.rng import Generator

Floats = NDArray[np.float64]


class Sampler(Protocol):
    """What a sampler must have. If its constructor has an argument `dataset`, it gets the training
    set; its other arguments are those of the YAML file.
    """

    def batches(self, epoch: int, n: int, rng: Generator) -> Iterable[ArrayLike]:
        """Return the batches of an epoch.

        It must be a pure function: the same arguments, the same batches, whatever was asked
        before. Every epoch has as many batches; their sizes may differ, and a sample may come
        several times.

        Args:
            epoch: from 0.
            n: samples of the training set.
            rng: a generator that belongs to the seed (`seeds.order`) and the epoch.

        Returns:
            For each batch the ids of its samples, integers from 0 to n - 1.
        """


class Weighted:
    """Draw samples with replacement, by their weights."""

    def __init__(self, dataset: Any, batch_size: int, weights: str | Sequence[float]) -> None:
        """Take one weight for each sample.

        Args:
            weights: their list, or the name of an attribute of the data set; not negative.
        """
        found = values_of(dataset, weights, "weights")
        if found.min() < 0 or found.sum() == 0:
            raise InputError("data.sampler.weights: expected weights >= 0, and one above; see them")
        self._chances, self._batch_size = found / found.sum(), batch_size

    def batches(self, _epoch: int, n: int, rng: Generator) -> list[NDArray[np.int64]]:
        """Return as many whole batches as n samples fill."""
        shape = (max(n // self._batch_size, 1), self._batch_size)
        return list(rng.choice(n, shape, p=self._chances))


class Buckets:
    """Put samples of like length together, in batches of varying size.

    A batch of B samples of which the longest has length L has B x L <= `batch_length`, so that
    padding is small and memory even. Each epoch makes other batches, in another order.
    """

    def __init__(
        self,
        dataset: Any,
        batch_length: int,
        lengths: str | Sequence[float],
        width: float = 1,
        multiple_of: int = 1,
    ) -> None:
        """Take the length of each sample.

        Args:
            batch_length: of a batch after padding: samples times length.
            lengths: their list, or the name of an attribute of the data set.
            width: lengths that round up to the same multiple of it are mixed.
            multiple_of: of which the size of each batch is one, such as `${trainer.shards}`; what
                is left over is left out.
        """
        rounded = np.ceil(values_of(dataset, lengths, "lengths") / width) * width
        self._lengths = np.maximum(rounded, 1)
        self._batch_length, self._multiple_of = batch_length, multiple_of

    def batches(self, _epoch: int, n: int, rng: Generator) -> list[NDArray[np.int64]]:
        """Return batches of all samples, the longest together, the batches in random order."""
        order = rng.permutation(n)
        order = order[np.argsort(-self._lengths[order], kind="stable")]
        batches, unit = [], self._multiple_of
        while len(order) >= unit:
            fitting = int(self._batch_length // self._lengths[order[0]])
            size = max(min(fitting, len(order)) // unit * unit, unit)
            batches.append(order[:size])
            order = order[size:]
        return [batches[index] for index in rng.permutation(len(batches))]


class Curriculum:
    """Begin with the easiest samples, and take more of them from epoch to epoch."""

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        difficulty: str | Sequence[float],
        epochs: int,
        start: float = 0.25,
    ) -> None:
        """Take the difficulty of each sample.

        Args:
            difficulty: their list, or the name of an attribute of the data set; low is easy.
            epochs: after how many all samples are taken.
            start: the share of the samples that the first epoch takes.
        """
        found = values_of(dataset, difficulty, "difficulty")
        self._from_easiest = np.argsort(found, kind="stable")
        self._batch_size, self._epochs, self._start = batch_size, epochs, start

    def batches(self, epoch: int, n: int, rng: Generator) -> list[NDArray[np.int64]]:
        """Return as many whole batches as n samples fill: few samples come several times."""
        share = min(self._start + (1 - self._start) * epoch / self._epochs, 1)
        easiest = self._from_easiest[: max(round(share * n), 1)]
        steps = max(n // self._batch_size, 1)
        rounds = -(-steps * self._batch_size // len(easiest))
        ids = np.concatenate([rng.permutation(easiest) for _ in range(rounds)])
        return list(ids[: steps * self._batch_size].reshape(steps, self._batch_size))


def values_of(dataset: Any, values: str | Sequence[float], argument: str) -> Floats:
    """Return one number for each sample of a data set, float64 (n,).

    Args:
        values: the numbers, or the name of an attribute that holds or returns them. Of a part
            (`seedbed.data.part`, torch's `Subset`) it may be one of the whole data set.
        argument: of the sampler, for messages.

    Raises:
        InputError: there is not one for each sample.
    """
    found = _attribute(dataset, values) if isinstance(values, str) else values
    try:
        numbers = np.asarray(found, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(())
    n = len(dataset)
    if numbers.shape != (n,) or not np.isfinite(numbers).all():
        got = "nothing" if found is None else f"{type(found).__name__} of shape {numbers.shape}"
        raise InputError(
            f"data.sampler.{argument}: expected a finite number for each of {n} samples, or the "
            f"name of an attribute of {type(dataset).__name__} with them, got {got} "
            f"({str(values)[:60]}); see docs/your-code.md"
        )
    return numbers


def _attribute(dataset: Any, name: str) -> Any:
    found = getattr(dataset, name, None)
    if found is None and hasattr(dataset, "dataset") and hasattr(dataset, "indices"):
        whole = _attribute(dataset.dataset, name)
        return None if whole is None else np.asarray(whole)[np.asarray(dataset.indices)]
    return found() if callable(found) else found
