"""Passes by graphs have the bits of passes without, or the run goes on without.

A CUDA graph needs a GPU. Here, PyTorch's tracer takes its place: it records the kernels
of the passes, too, with the numbers of Python and the memory that they had, and its
replay runs these kernels and nothing of Python.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from seedbed import fingerprint
from seedbed.config import compose
from seedbed.errors import InputError
from seedbed.methods import Method
from seedbed.pipeline.source import Batch
from seedbed.tasks import Classification
from seedbed.training import graphs
from seedbed.training.graphs import Graphs
from seedbed.training.replay import take_twice
from seedbed.training.shards import Shards
from seedbed.training.state import Passes, TrainingState
from seedbed.training.step import train_step
from tests import tiny

STEPS = 9
ENGAGED = "captured forward and backward passes"


@contextmanager
def unchanged(tensors: list[Tensor]) -> Iterator[None]:
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def traced(model: nn.Module, work: Callable[[], Passes]) -> Any:
    """Record work as `graphs.of_cuda` does; unlike a capture, tracing runs it, so what
    it changes is restored."""
    recorded: list[Passes] = []

    def flat() -> list[Tensor]:
        passes = work()
        recorded[:] = [passes]
        return [*passes.gradients, *passes.values.values()]

    with unchanged([*model.parameters(), *model.buffers()]):
        replay = make_fx(flat)()
        static = [torch.empty_like(tensor) for tensor in replay()]
    of_trace = recorded[0]
    count = len(of_trace.gradients)
    values = dict(zip(of_trace.values, static[count:], strict=True))

    def fill() -> None:
        for tensor, new in zip(static, replay(), strict=True):
            tensor.copy_(new)

    return Passes(static[:count], values, of_trace.used), fill


class Net(nn.Module):
    """Convolution, batch normalisation, dropout: buffers and draws."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.3),
            nn.Linear(144, 5),
        )
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # type: ignore[no-any-return]


class Counting(Net):
    """Negative control: a graph keeps the number of its capture."""

    def forward(self, images: Tensor) -> Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(images) * self.calls


class Classify(Method):
    """Without the engine's tasks, which read a number on the CPU (and none on a
    GPU)."""

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        outputs = model(batch.inputs)
        accuracy = (outputs.argmax(1) == batch.targets).float().mean()
        loss = nn.functional.cross_entropy(outputs, batch.targets)
        return {"loss": loss, "accuracy": accuracy}


class Replacing(Net):
    """Replaces a buffer: a graph would go on reading the one of its capture."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1, 8, 8))

    def forward(self, images: Tensor) -> Tensor:
        self.mean = 0.9 * self.mean + 0.1 * images.detach().mean(0)
        return super().forward(images - self.mean)


class Noting(Net):
    """Notes a number for callbacks, in a tensor that is no buffer."""

    def forward(self, images: Tensor) -> Tensor:
        self.norm = images.norm()
        return super().forward(images)


class Caching(Net):
    """Fills a cache in place."""

    def __init__(self) -> None:
        super().__init__()
        self.caches = [torch.zeros(3000)]

    def forward(self, images: Tensor) -> Tensor:
        self.caches[0][1500] += 1
        return super().forward(images)


class Switching(Net):
    """Freezes its batch normalisation from some step on."""

    def forward(self, images: Tensor) -> Tensor:
        self.layers[1].train(SCHEDULE.factor < 3)
        return super().forward(images)


SCHEDULE = SimpleNamespace(factor=0)


class Scheduled(Net):
    """The same, where no attribute shows it."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * SCHEDULE.factor


class Dropping(Net):
    """Leaves a layer out now and then, which comparisons at the start may not meet."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * (random.random() < 0.99)


class Reading(Net):
    """Reads a number from the device, which would wait for it."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) * float(images.sum() > -1)


def batches(shapes: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    sizes = [8 + step % shapes for step in range(STEPS)]
    return [
        Batch(
            torch.arange(size),
            torch.randn(size, 1, 8, 8, generator=generator),
            torch.randint(5, (size,), generator=generator),
        )
        for size in sizes
    ]


def state(model: type[Net], **options: Any) -> TrainingState:
    torch.manual_seed(0)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    return TrainingState(
        net,
        {"optimizer": optimizer},
        Classify(),
        torch.device("cpu"),
        gradient_clip_norm=1.0,
        **options,
    )


def graphs_of(training: TrainingState, log: Callable[[str], None]) -> Graphs:
    model = training.model
    return Graphs(
        model,
        log,
        record=lambda work: traced(model, work),
        # Here, dropout draws from PyTorch's generator for the CPU, which replays do,
        # too.
        host_generators=lambda: (random.getstate(), repr(np.random.get_state())),
    )


def trained(
    model: type[Net], is_graphed: bool, slices: int = 1, shapes: int = 1, **options: Any
) -> tuple[list[Tensor], list[str]]:
    """Take steps; return the hashes of their stages and the weights, and what was
    logged."""
    log: list[str] = []
    training = state(model, **options)
    if is_graphed:
        training.graphs = graphs_of(training, log.append)
    (optimizer,) = training.optimizers.values()
    hasher = fingerprint.Hasher(torch.device("cpu"))
    hashes = []
    for step, batch in enumerate(batches(shapes), 1):
        optimizer.param_groups[0]["lr"] = 0.01 / step  # as a schedule does
        SCHEDULE.factor = step
        parts = zip(*(part.chunk(slices) for part in batch), strict=True)
        of_slices = [Batch(*part) for part in parts]
        result = train_step(
            training, of_slices, step, Shards(slices), step % 2 == 0, hasher
        )
        assert result.stages is not None
        assert (result.values is None) == (step % 2 == 1)
        hashes += [result.stages, fingerprint.of_tensors([result.loss])]
    return [*hashes, *training.model.state_dict().values()], log


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("slices", [1, 2])
def test_a_graph_changes_no_bit(slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedule, clipping, dropout, batch normalisation, an unused parameter, steps with
    and without logged values, several slices."""
    monkeypatch.setattr(graphs, "_WARM_UP", 1)
    monkeypatch.setattr(graphs, "_CHECKED", 1)
    expected, _ = trained(Net, False, slices)
    given, log = trained(Net, True, slices)
    assert same(expected, given)
    assert [ENGAGED in line for line in log] == [True]
    other, _ = trained(Net, False, slices, dropout_seed=1)  # negative control
    assert not same(other, given)


@pytest.mark.parametrize(
    ("model", "shapes", "reason"),
    [
        (Counting, 1, "the forward pass changes model.calls"),
        (Replacing, 1, "the forward pass changes model.mean"),
        (Noting, 1, "the forward pass changes model.norm"),
        (Caching, 1, "the forward pass changes model.caches"),
        (Switching, 1, "the forward pass changes model.layers.1.training"),
        (Dropping, 1, "the passes draw random numbers on the CPU"),
        (Scheduled, 1, "a replay has other bits"),
        (Net, 9, "more than 8 shapes"),
    ],
)
def test_where_a_graph_could_go_wrong_the_run_goes_on_without(
    model: type[Net], shapes: int, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The steps have the bits of a run without, also those that were taken both ways;
    the reason is said once."""
    monkeypatch.setattr(graphs, "_WARM_UP", 3 if model is Switching else 1)
    expected, _ = trained(model, False, shapes=shapes)
    given, log = trained(model, True, shapes=shapes)
    assert same(expected, given)
    assert len(log) == 1
    assert reason in log[0]


def test_what_a_capture_has_replaced_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a pass before, the capture is the first to replace something."""
    monkeypatch.setattr(graphs, "_WARM_UP", 0)
    for model in (Replacing, Counting):
        expected, _ = trained(model, False)
        given, log = trained(model, True)
        assert same(expected, given)
        assert [line.startswith(graphs.EAGER) for line in log] == [True]


class Momentum(torch.optim.SGD):
    """Keeps the gradients of the step before, which no graph may write to."""

    def step(self, closure: Any = None) -> Any:
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                before = self.state[parameter].get("before")
                self.state[parameter]["before"] = parameter.grad
                if before is not None:
                    parameter.data -= 0.01 * before
        return super().step(closure)


def test_gradients_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "_WARM_UP", 1)
    weights = []
    for is_graphed in (False, True):
        training = state(Net)
        optimizer = Momentum(training.model.parameters(), lr=0.01)
        training.optimizers = {"optimizer": optimizer}
        if is_graphed:
            training.graphs = graphs_of(training, lambda _: None)
        for step, batch in enumerate(batches(), 1):
            train_step(training, [batch], step, Shards(), step % 2 == 0, None)
        weights.append([p.detach() for p in training.model.parameters()])
    assert same(*weights)


def test_only_the_model_is_the_users_code_in_a_graph() -> None:
    """Else the first reason is named. The first is always that there is no GPU here."""
    trainer = compose.configuration(*tiny.OVERRIDES).trainer
    training = state(Net)
    assert graphs.obstacle(training, trainer) == "the device is cpu"
    training.device = torch.device("cuda")
    reason = graphs.obstacle(training, trainer)
    assert reason == "Classify has training_step of its own"
    training.method = Method()
    assert graphs.obstacle(training, trainer) == "data.task has code of its own"
    training.method.task = Classification()
    assert graphs.obstacle(training, trainer) is None
    trainer.compile = "reduce-overhead"
    reason = graphs.obstacle(training, trainer)
    assert reason == "trainer.compile=reduce-overhead captures graphs of its own"


def test_what_cannot_be_captured_is_taken_without() -> None:
    """A tracer refuses to read numbers, as CUDA does in a capture."""
    expected, _ = trained(Reading, False)
    given, log = trained(Reading, True)
    assert same(expected, given)
    assert len(log) == 1
    assert log[0].startswith(f"{graphs.EAGER}: ")


def test_weights_that_move_in_memory_are_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The graph would go on reading where they were."""
    monkeypatch.setattr(graphs, "_WARM_UP", 1)
    log: list[str] = []
    training = state(Net)
    training.graphs = graphs_of(training, log.append)
    for step, batch in enumerate(batches(), 1):
        if step == 6:
            weight = training.model.layers[0].weight
            weight.data = weight.data.clone()
        train_step(training, [batch], step, Shards(), False, None)
    assert len(log) == 2
    assert ENGAGED in log[0]
    assert log[1] == f"{graphs.EAGER}: weights or buffers have moved in memory"


@pytest.mark.parametrize("model", [Net, Scheduled])
def test_a_replayed_step_is_taken_both_ways(
    model: type[Net], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trainer.replay_every_steps` finds a number of Python that changes late, after
    the comparisons at the start."""
    monkeypatch.setattr(graphs, "_WARM_UP", 1)
    SCHEDULE.factor = 1
    training = state(model)
    training.graphs = graphs_of(training, lambda _: None)
    *steps, before, after = enumerate(batches(), 1)
    for step, batch in steps:
        train_step(training, [batch], step, Shards(), False, None)
    take_twice(training, [before[1]], before[0], Shards(), False)
    SCHEDULE.factor = 2
    finds = pytest.raises(InputError, match=r"step 9 was taken twice .* differs")
    with finds if model is Scheduled else nullcontext():
        take_twice(training, [after[1]], after[0], Shards(), False)
