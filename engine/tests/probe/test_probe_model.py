"""Examining one's own model finds what would not come back, and where, and nothing else."""

import math
import random
import secrets
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn

from seedbed import determinism, rng
from seedbed.config import Settings
from seedbed.errors import InputError
from seedbed.operations.place import Place
from seedbed.operations.trace import Event, differing, hashes, traced
from seedbed.probe.examine import Finding, examine
from seedbed.probe.randomness import held_generators
from tests.running import TEMPLATE, command, typed

SHARED = np.random.default_rng(0)


class Clean(torch.utils.data.Dataset):
    """Sixteen images of 4 x 4 with noise from seeded generators."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.rand(1, 4, 4) + self.noise() + rng.generator().random(), index % 3

    def noise(self) -> float:
        return random.random() + np.random.random()


class OwnGenerator(Clean):
    def __init__(self) -> None:
        self.transform = [np.random.RandomState(0)]

    def noise(self) -> float:
        return float(self.transform[0].random_sample())


class Unseeded(Clean):
    def noise(self) -> float:
        return float(np.random.default_rng().random())


class SeededByIndex(Clean):
    """A generator of its own for each sample, which has the same numbers every time."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        own = np.random.RandomState(
            index,
        )
        return torch.rand(1, 4, 4) + own.random_sample(), index % 3


class Unfixed(Clean):
    """A generator that somebody forgot to seed."""

    seed = None

    def noise(self) -> float:
        return float(np.random.RandomState(self.seed).random_sample())


class SharedGenerator(Clean):
    def noise(self) -> float:
        return float(SHARED.random())


class DrawsInFetch(Clean):
    def __init__(self) -> None:
        self.scale = np.random.random()  # and when it is built

    def fetch(self, ids: np.ndarray, draws: rng.Draws | None) -> tuple[Tensor, Tensor]:
        return torch.ones(len(ids), 1, 4, 4) * np.random.random(), torch.from_numpy(ids % 3)


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
        return Unpooling()


class Noise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()
        self.generator.manual_seed(secrets.randbits(60))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(x.shape, generator=self.generator)


class Noisy(Net):
    def middle(self) -> nn.Module:
        return Noise()


class Outside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.from_numpy(np.random.default_rng().random(8)).float()


class FromOutside(Net):
    def middle(self) -> nn.Module:
        return Outside()


class RandomStart(Net):
    def __init__(self) -> None:
        super().__init__()
        nn.init.constant_(self.head.bias, secrets.randbits(20))


class Forking(torch.autograd.Function):
    """Does nothing; its gradient is another one each time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient + torch.rand(
            1, generator=torch.Generator().manual_seed(secrets.randbits(60))
        )


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


def settings(
    model: type = Net, data: type = Clean, preset: str = "strict", seeding: bool = True
) -> Settings:
    spec: Any = OmegaConf.to_container(
        OmegaConf.load(TEMPLATE / f"configs/determinism/{preset}.yaml")
    )
    # This process has started already, with an environment and threads of its own.
    interop = torch.get_num_interop_threads()
    spec |= {"env": {}, "interop_threads": interop, "threads": 1, "seeding": seeding}
    here = {"_target_": f"{__name__}.{data.__name__}"}
    return typed(
        seeds=dict.fromkeys(rng.STREAMS, 0),
        determinism=spec,
        trainer={"device": "cpu"},
        data={"batch_size": 4, "train": here, "validation": here},
        model={"name": "net", "_target_": f"{__name__}.{model.__name__}"},
        optimizer={"name": "adamw", "_target_": "torch.optim.AdamW", "lr": 0.01},
    )


def found(remarks: list[Finding]) -> list[tuple[str, str, str]]:
    return [(remark.where, remark.phase, remark.what) for remark in remarks]


@pytest.mark.parametrize("preset", ["strict", "seeded", "fast"])
def test_a_clean_configuration_gets_no_remark(preset: str) -> None:
    """Seeded draws from four generators, in data and model, are no reason for a remark."""
    assert examine(settings(preset=preset)) == []


@pytest.mark.parametrize("preset", ["strict", "fast"])
def test_a_refused_operation_is_named_with_its_module_and_line(preset: str) -> None:
    """What strict would refuse is found at every preset, with what to use instead."""
    (remark,) = examine(settings(Refused, preset=preset))

    assert found([remark]) == [("body.3", "forward", "aten.max_unpool2d.default")]
    assert "raises under strict: max_unpooling2d_forward_out" in remark.says
    assert "use torch.zeros" in remark.says
    assert remark.line.startswith(f"{__file__}:")


def test_a_generator_of_ones_own_in_a_model_is_found() -> None:
    """The operation that draws from it, and the generator."""
    remarks = examine(settings(Noisy))

    assert ("body.3", "forward", "aten.rand.generator") in found(remarks)
    assert ("model", "step", "model.body.3.generator") in found(remarks)
    says = {remark.says for remark in remarks if remark.what == "aten.rand.generator"}
    assert "gives other bits for the same inputs" in says


def test_what_comes_in_from_outside_is_named_where_it_comes_in() -> None:
    """A NumPy draw in a model has no operation of its own; the one that takes it is named."""
    remarks = examine(settings(FromOutside))

    (first,) = [r for r in remarks if r.says.startswith("gets other bits, which no operation made")]
    assert (first.where, first.phase) == ("body.3", "forward")
    assert first.line.startswith(f"{__file__}:")


def test_a_backward_pass_is_placed_in_the_module_of_its_forward_pass() -> None:
    """Another gradient each time is found in the layer whose gradient it is."""
    remarks = examine(settings(OtherGradient))

    assert ("body.3", "backward", "aten.rand.generator") in found(remarks)


def test_weights_that_start_otherwise_are_found() -> None:
    """Initial weights that do not come from the init stream are named, and only those."""
    remarks = examine(settings(RandomStart))

    says = "starts with other values"
    assert [r.what for r in remarks if r.says == says] == ["head.bias"]
    assert not any("aten" in remark.what for remark in remarks)


@pytest.mark.parametrize(
    ("data", "drawn"),
    [
        (OwnGenerator, "data.train.dataset.transform[0]"),
        (SharedGenerator, f"{__name__}.SHARED"),
        (Unseeded, "batch"),
        (Unfixed, "batch"),
    ],
)
def test_randomness_outside_the_streams_is_found_in_data(data: type, drawn: str) -> None:
    """A generator that moved without being seeded is named by where it is held."""
    remarks = examine(settings(data=data))

    assert any(r.where == "data.train" and r.what.startswith(drawn) for r in remarks)


def test_without_seeding_all_that_is_drawn_is_found() -> None:
    """In whole batches, when data is built, and by dropout; with it, none is a remark."""
    for data in (SeededByIndex, DrawsInFetch):
        assert examine(settings(data=data)) == []
    remarks = found(examine(settings(data=DrawsInFetch, seeding=False)))
    places = {("data", "building", "numpy.random"), ("data.train", "loading", "numpy.random")}
    assert places | {("model", "step", "torch")} <= set(remarks)
    assert ("body.2", "forward") in [(where, phase) for where, phase, _ in remarks]


EVENT = Event(Place("a", "", "forward"), "aten.mm", (1,), (2,))


@pytest.mark.parametrize(
    ("first", "again", "says"),
    [
        ([EVENT], [EVENT], []),
        ([EVENT], [replace(EVENT, outputs=(3,))], ["gives other bits"]),
        ([EVENT], [replace(EVENT, inputs=(0,), outputs=(3,))], ["gets other bits"]),
        ([EVENT], [replace(EVENT, inputs=(0,))], []),
        (
            [EVENT, EVENT],
            [replace(EVENT, outputs=(3,)), replace(EVENT, inputs=(3,), outputs=(4,))],
            ["gives other bits"],
        ),
        ([EVENT, EVENT], [EVENT], ["runs in one run of the step only"]),
        ([EVENT], [replace(EVENT, operation="aten.add")], ["another operation, aten.mm"]),
    ],
)
def test_the_first_to_part_is_blamed(
    first: list[Event], again: list[Event], says: list[str]
) -> None:
    """An operation that passes on other bits is not blamed for them, except the first one."""
    said = [text for _, text in differing(first, again)]

    assert [b for a, b in zip(said, says, strict=True) if not a.startswith(b)] == []


def test_the_global_generators_are_nobodys_own() -> None:
    """The search finds generators that objects hold, and leaves out those that are seeded."""

    class Holder:
        own = None

        def __init__(self) -> None:
            self.parts = {"x": (np.random.default_rng(0), torch.default_generator)}
            self.draw = lambda: SHARED.random()

    assert set(held_generators({"data": Holder()})) == {
        "data.parts['x'][0]",
        f"{__name__}.SHARED",
    }


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_gradients_are_traced_like_others(sparse: bool) -> None:
    """They lie in parts, and are looked into all the same: other gradients, other hashes."""
    embedding = nn.Embedding(5, 3, sparse=sparse)
    optimizer = torch.optim.SGD(embedding.parameters(), 0.1)
    with traced(embedding, [optimizer]) as events:
        embedding(torch.tensor([1, 2])).sum().backward()
        optimizer.step()

    assert any("weight" in event.names for event in events)
    assert {"forward", "backward", "update"} <= {event.place.phase for event in events}
    assert hashes([embedding.weight.grad]) != hashes([2 * embedding.weight.grad])


def test_what_lies_in_the_workspace_of_an_lstm_is_not_looked_at() -> None:
    """Parts of it are never written; negative control: other sequences are seen."""

    def trace(dirt: float, value: float) -> list[Event]:
        torch.manual_seed(0)
        model = nn.LSTM(2, 64, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch.full((6_300_000,), dirt)  # of the workspace's size
        with traced(model, [optimizer]) as events:
            model(torch.full((64, 100, 2), value))[0].sum().backward()
        return events

    first, second = trace(1e30, 0.5), trace(math.nan, 0.5)
    assert any("mkldnn_rnn_layer_backward" in event.operation for event in first)
    assert first == second != trace(math.nan, 0.25)


class ExtraState(Net):
    def get_extra_state(self) -> object:
        return {"version": 1}

    def set_extra_state(self, state: object) -> None:
        assert state == {"version": 1}


class Lazy(Net):
    def middle(self) -> nn.Module:
        return nn.LazyLinear(8)


class Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        fourier = torch.fft.ifft(torch.fft.fft(x).conj()).real
        nested = torch.nested.nested_tensor(list(x)).to_padded_tensor(0.0)
        rounded = torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8).dequantize()
        return fourier + nested + rounded + torch.ones(8, device="meta").numel()


class OddTensors(Net):
    def middle(self) -> nn.Module:
        return Odd()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [ExtraState, Lazy, OddTensors])
def test_any_kind_of_tensor_and_state_can_be_examined(model: type) -> None:
    """What is no plain tensor ends in no traceback, and honest models get no remark."""
    assert examine(settings(model)) == []


class RefusedInLoading(Clean):
    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shuffled = torch.zeros(16).put_(torch.arange(16), torch.rand(16))
        return shuffled.view(1, 4, 4), index % 3


def test_what_is_refused_in_loading_is_named() -> None:
    """A transform that strict would stop at is one remark, not the end of the examination."""
    (remark,) = examine(settings(data=RefusedInLoading))

    assert (remark.where, remark.phase) == ("data.train", "loading")
    assert remark.says.startswith("raises under strict: put_ does not have a deterministic")


class GrowsAnew(Net):
    built = 0

    def __init__(self) -> None:
        super().__init__()
        GrowsAnew.built += 1
        for index in range(GrowsAnew.built):
            self.add_module(f"more_{index}", nn.Linear(2, 2))


def test_a_model_that_is_another_one_each_time_is_refused_in_one_line() -> None:
    """Nothing of two models can be compared; the line says what one of them lacks."""
    with pytest.raises(InputError, match=r"model: expected the same parameters .*more_1") as caught:
        examine(settings(GrowsAnew))
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_the_command_examines_the_configuration_that_train_would_make() -> None:
    """Overrides are composed as by train.py; an honest model exits with 0."""
    done = command("scripts/probe_ops.py", "model=cnn", "data.batch_size=8")

    assert (done.returncode, done.stderr) == (0, "")
    assert "the same bits, nothing refused, every draw seeded" in done.stdout
