"""`examine` locates the parts of a configuration that are not reproducible, and no others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from seedbed.data.positions import Shuffled
from seedbed.explain.examine import examine
from tests import fault_score, faults
from tests.operations import test_refusals as refused
from tests.running import command, typed


class OwnGenerator(faults.Images):
    """A data set that draws from its own generator, whose state is in no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.RandomState(0)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = super().__getitem__(index)
        return image + float(self.generator.random_sample()), label


class SeededNoise(faults.Net):
    """A model that draws from its own seeded generator, whose state is in no checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.rand(1, generator=self.generator))


class Refused(faults.Net):
    """A model with one refused operation in the forward pass and one in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.unpool, self.put = refused.Unpool(), refused.PutInBackward()

    def forward(self, x: Tensor) -> Tensor:
        return self.put(super().forward(self.unpool(x)))


@pytest.fixture(autouse=True)
def _flags() -> Iterator[None]:
    with fault_score.flags():
        yield


def own(kind: type) -> dict[str, Any]:
    return {"_target_": f"{__name__}.{kind.__name__}"}


def examined(preset: str = "strict", replace: bool = True, **parts: dict[str, Any]) -> list[str]:
    plain = fault_score.settings(**parts).plain
    chosen = fault_score.preset(preset)
    chosen["replace"] &= replace
    return examine(typed(**plain | {"determinism": chosen}))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("preset", ["strict", "seeded", "fast"])
def test_nothing_is_found_in_a_clean_configuration(preset: str) -> None:
    """Negative control: seeded draws in data and model are not reported."""
    assert examined(preset) == []


@pytest.mark.parametrize("preset", ["strict", "fast"])
def test_replaced_operations_are_not_refused(preset: str) -> None:
    """Strict replaces them, so that they are not found under any preset."""
    assert examined(preset, model=own(Refused)) == []


def test_refused_operations_are_named_with_module_and_line() -> None:
    """All operations that strict refuses are found."""
    forward, backward = examined(replace=False, model=own(Refused))
    assert forward.startswith("max_unpooling2d_forward_out has no deterministic implementation: ")
    assert f"forward pass in module unpool, {refused.__file__}:" in forward
    assert forward.endswith("; docs/replaced.md has what determinism.replace=true replaces")
    assert backward.startswith("put_ has no deterministic implementation: ")
    assert "backward pass in module put, " in backward


FIRST = int(Shuffled(faults.SAMPLES, fault_score.BATCH, 0).position(0, 0).ids[0])
NOISE = {"fault": "unseeded_generator", "step": 1}
TRANSFORM = {"fault": "unseeded_transform", "sample_id": FIRST}
CASES = [
    ("model", NOISE, "step 1 differs when it is taken twice", "forward: aten.rand.generator in"),
    ("model", own(SeededNoise), "step 2 differs when it is taken by a resumed run", "aten.rand"),
    ("data", TRANSFORM, "step 1", "augmentation: Noise"),
    ("data", own(OwnGenerator), "step 2", "sample loading: __getitem__ in module data.train"),
]


@pytest.mark.parametrize(("part", "change", "when", "what"), CASES)
def test_what_differs_is_named(part: str, change: dict[str, Any], when: str, what: str) -> None:
    """Unseeded draws differ in a repeated step, generators with a state in a resumed run."""
    first, second, *_ = examined(**{part: change})
    assert first.startswith(when)
    assert what in second


@pytest.mark.long
def test_the_command_examines_the_configuration_that_train_would_make() -> None:
    """Overrides are composed as by train.py; for a reproducible model the exit status is 0."""
    done = command("scripts/probe_ops.py", "model=cnn", "data.batch_size=8")
    assert (done.returncode, done.stderr) == (0, "")
    assert "repeated and resumed: the same bits, nothing refused" in done.stdout
