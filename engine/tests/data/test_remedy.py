"""The remedy for data sets with generators of their own."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from seedbed.data.remedy import remedy_for

SEED = "int(rng.generator().integers(2**31))"


class Albumentations:
    """A transform with a generator of its own."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()

    def set_random_seed(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)


class Monai:
    def set_random_state(self, seed: int) -> None:
        """Do as MONAI does."""


def holding(value: Any) -> Any:
    return Subset(SimpleNamespace(transforms=[{"a": value}], big=torch.zeros(9)), [0])  # type: ignore[arg-type]


AT = "self.dataset.transforms[0]['a']"


@pytest.mark.parametrize(
    ("make", "remedy"),
    [
        (Albumentations, f"; in __getitem__, call {AT}.set_random_seed({SEED})"),
        (Monai, f"; in __getitem__, call {AT}.set_random_state({SEED})"),
        (np.random.default_rng, f"; in __getitem__, draw from rng.generator() and not from {AT}"),
        (np.random.RandomState, f"; in __getitem__, draw from rng.generator() and not from {AT}"),
        (torch.Generator, f"; in __getitem__, draw from rng.generator() and not from {AT}"),
        (random.Random, f"; in __getitem__, draw from rng.generator() and not from {AT}"),
    ],
)
def test_the_generator_that_a_data_set_holds_is_named(make: Callable[[], Any], remedy: str) -> None:
    """In a collection, in the data set of a part. Negative controls: none; a cycle."""
    assert remedy_for(holding(make())) == remedy
    assert remedy_for(TensorDataset(torch.zeros(3))) == ""
    cycle = SimpleNamespace(label="Generator")
    cycle.itself = [cycle]
    assert remedy_for(cycle) == ""


def test_the_advice_makes_a_sample_a_function_of_its_seed() -> None:
    """Negative control: without it, two instances draw differently."""
    one, other = Albumentations(), Albumentations()
    assert one.generator.random() != other.generator.random()
    for each in (one, other):
        each.set_random_seed(7)
    assert one.generator.random() == other.generator.random()
