"""Examining a configuration finds what is not reproducible, and where, and nothing else."""

import random
import secrets
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seedbed import determinism, rng
from seedbed.probe.examine import examine
from tests import fault_score
from tests.refused import PutInBackward
from tests.running import command, typed


class Clean(torch.utils.data.Dataset):
    """Sixteen images of 4 x 4 with noise from seeded generators."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(1, 4, 4) + self.noise(index) + rng.generator().random(), index % 3

    def noise(self, index: int) -> float:
        return random.random() + np.random.random()


class OwnGenerator(Clean):
    def __init__(self) -> None:
        self.generator = np.random.RandomState(0)

    def noise(self, index: int) -> float:
        return float(self.generator.random_sample())


class Unseeded(Clean):
    def noise(self, index: int) -> float:
        return float(np.random.default_rng().random())


class Net(nn.Module):
    """Two layers with dropout between them, and a place for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.Dropout(), self.middle())
        self.head = nn.Linear(8, 3)

    def middle(self) -> nn.Module:
        return nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Unpooling(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        pooled, indices = F.max_pool1d(x[:, None], 2, return_indices=True)
        return F.max_unpool1d(pooled, indices, 2)[:, 0]


class Refused(Net):
    def middle(self) -> nn.Module:
        return nn.Sequential(Unpooling(), PutInBackward())


class Noise(nn.Module):
    def __init__(self, seed: int | None = None) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(secrets.randbits(60) if seed is None else seed)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=self.generator)


class Noisy(Net):
    def middle(self) -> nn.Module:
        return Noise()


class SeededNoise(Net):
    """What it draws next is in no checkpoint."""

    def middle(self) -> nn.Module:
        return Noise(seed=0)


class Forking(torch.autograd.Function):
    """Does nothing; its gradient is another one each time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        generator = torch.Generator()
        generator.manual_seed(secrets.randbits(60))
        return gradient + torch.rand(1, generator=generator)


class ForkingLayer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Forking.apply(x)


class OtherGradient(Net):
    def middle(self) -> nn.Module:
        return ForkingLayer()


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    before = determinism.in_force()
    yield
    determinism.apply(before)


def examined(model: type = Net, data: type = Clean, preset: str = "strict") -> list[str]:
    targets = ({"_target_": f"{__name__}.{each.__name__}"} for each in (model, data))
    plain = fault_score.settings(**dict(zip(("model", "data"), targets, strict=True))).plain
    plain["determinism"] = fault_score.preset(preset)
    plain["data"]["collate"] = None
    return examine(typed(**plain))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "data", "preset"),
    [
        *[(Net, Clean, preset) for preset in ("strict", "seeded", "fast")],
    ],
)
def test_nothing_is_found_in_a_clean_configuration(model: type, data: type, preset: str) -> None:
    """Seeded draws in data and model are in order."""
    assert examined(model, data, preset) == []


@pytest.mark.parametrize("preset", ["strict", "fast"])
def test_refused_operations_are_named_with_module_and_line(preset: str) -> None:
    """What strict would refuse is found at every preset, all at once, with what to use instead."""
    forward, backward = examined(Refused, preset=preset)

    assert forward.startswith("max_unpooling2d_forward_out has no deterministic implementation: ")
    assert f"forward pass in module body.3.0, {__file__}:" in forward
    assert "; use torch.zeros" in forward
    assert backward.startswith("put_ has no deterministic implementation: ")
    assert "backward pass in module body.3.1, " in backward


@pytest.mark.parametrize(
    ("model", "data", "when", "what"),
    [
        (Noisy, Clean, "step 1 differs when it is taken twice", "forward: aten.rand.generator in"),
        (OtherGradient, Clean, "step 1", "backward: aten.rand.generator in module body.3"),
        (SeededNoise, Clean, "step 2 differs when it is taken by a resumed run", "aten.rand"),
        (Net, Unseeded, "step 1", "sample loading: __getitem__ in module data.train"),
        (Net, OwnGenerator, "step 2", "sample loading: __getitem__ in module data.train"),
    ],
)
def test_what_differs_is_named_where_it_begins(
    model: type, data: type, when: str, what: str
) -> None:
    """Draws that no seed controls differ at once, generators that are state in a resumed run."""
    first, second, *_ = examined(model, data)

    assert first.startswith(when)
    assert what in second


@pytest.mark.long
def test_the_command_examines_the_configuration_that_train_would_make() -> None:
    """Overrides are composed as by train.py; an honest model exits with 0."""
    done = command("scripts/probe_ops.py", "model=cnn", "data.batch_size=8")

    assert (done.returncode, done.stderr) == (0, "")
    assert "repeated and resumed: the same bits, nothing refused" in done.stdout
