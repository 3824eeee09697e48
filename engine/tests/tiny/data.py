"""Data sets: samples that draw from all three global generators; classes that keep
something."""

import csv
import logging
import random
import warnings
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from seedbed.datasets import SPLITS
from tests.tiny import CLASSES, FEATURES


class Noisy(Dataset[tuple[Tensor, int]]):
    """Noisy points around one centre per class."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Return a point, float32 (FEATURES,), and its class."""
        label = index % CLASSES
        point = (
            torch.randn(FEATURES) + float(np.random.normal(scale=0.1)) + random.random()
        )
        point[label] += 3
        return point, label


class Named(Noisy):
    """Noisy points whose coordinates come in two tensors with names."""

    def __getitem__(self, index: int) -> Any:
        """Return the first coordinate, float32 (), and the others, with the class."""
        point, label = super().__getitem__(index)
        return {"others": point[1:], "first": point[0]}, label


class Words(Dataset[tuple[Tensor, int]]):
    """One-hot words, numbered in the order in which the constructors of all splits meet
    them."""

    numbers: ClassVar[dict[str, int]] = {}

    def __init__(self, part: str, samples: int) -> None:
        words = [
            f"{part[: index % 2]}{index * len(part) % 7}" for index in range(samples)
        ]
        self.ids = [self.numbers.setdefault(word, len(self.numbers)) for word in words]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        word = torch.tensor(self.ids[index] % FEATURES)
        return torch.nn.functional.one_hot(word, FEATURES).float(), index % CLASSES


class CutOnce(Dataset[tuple[Tensor, int]]):
    """A split of points that the first constructor draws, and the class keeps."""

    parts: ClassVar[list[Tensor]] = []

    def __init__(self, part: str, samples: int) -> None:
        if not self.parts:
            self.parts.extend(torch.randperm(3 * samples).split(samples))
        self.ids = self.parts[SPLITS.index(part)]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = int(self.ids[index])
        return torch.sin(torch.arange(1.0, FEATURES + 1) * number), number % CLASSES


class Telling(Noisy):
    """Noisy points that log each access, and warn of one sample."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        logger = logging.getLogger(__name__)
        logger.info("loading sample %d", index)
        logger.debug("about sample %d", index)
        if index == 3:
            # which makes Python forget what it has shown
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                warnings.warn("sample 3 is odd", stacklevel=1)
        return super().__getitem__(index)


class Stored(Dataset[tuple[Tensor, Tensor]]):
    """Every third point of a file; its class is the largest of the first
    coordinates."""

    def __init__(self, file: str, start: int) -> None:
        self.points = torch.load(file)[start::3]

    def __len__(self) -> int:
        return len(self.points)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = self.points[index]
        return point, point[:CLASSES].argmax()


class Rows(Dataset[Any]):
    """Rows of a CSV file, normalised; with the class of each if there is a column
    `target`."""

    def __init__(self, file: str, statistics: Mapping[str, Any] | None) -> None:
        with open(file, newline="") as lines:
            rows = list(csv.DictReader(lines))
        inputs = [name for name in rows[0] if name != "target"]
        self.values = torch.tensor(
            [[float(row[name]) for name in inputs] for row in rows]
        )
        if statistics is not None:
            self.values = (self.values - torch.tensor(statistics["mean"])) / statistics[
                "deviation"
            ]
        self.targets = (
            [int(row["target"]) for row in rows] if "target" in rows[0] else None
        )
        self.names = [f"row {number}" for number in range(len(rows))]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Any:
        return (
            self.values[index]
            if self.targets is None
            else (self.values[index], self.targets[index])
        )


def mean_and_deviation(dataset: Rows) -> dict[str, Any]:
    return {"mean": dataset.values.mean(0), "deviation": float(dataset.values.std())}
