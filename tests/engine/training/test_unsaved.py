"""State that no checkpoint holds is noticed in the first steps, and caches are not."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

from seedbed import rng, tasks
from seedbed.data.loader import Batch
from seedbed.errors import InputError
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from seedbed.training.unsaved import Watch

BATCH_SIZE, CLASSES = 8, 3
_counted = itertools.count()


class Model(nn.Module):
    """A linear layer, and somewhere to keep things."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)
        self.calls, self.kept, self.shape = 0, None, ()
        self.mean, self.tables, self.history = torch.zeros(CLASSES), {}, []
        self.torch_draws, self.draws = torch.Generator(), random.Random(0)
        self.numpy_draws = np.random.default_rng(0)
        self.register_buffer("count", torch.zeros(()))


class Inside(nn.Module):
    """A model whose `layer` is the one that keeps things."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


# What lasts from step to step, and where it is.


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.head(x) * (1 + 1 / self.calls)


def counts_for_later(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.head(x) * (2 if self.calls > 1000 else 1)


def draws_torch(self: Any, x: Tensor) -> Tensor:
    return self.head(x + torch.randn(x.shape, generator=self.torch_draws))


def draws_numpy(self: Any, x: Tensor) -> Tensor:
    return self.head(x + float(self.numpy_draws.random()))


def draws_python(self: Any, x: Tensor) -> Tensor:
    return self.head(x + self.draws.random())


def averages(self: Any, x: Tensor) -> Tensor:
    outputs = self.head(x)
    self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
    return outputs - self.mean


def averages_in_place(self: Any, x: Tensor) -> Tensor:
    outputs = self.head(x)
    self.mean.mul_(0.9).add_(outputs.detach().mean(0))
    return outputs - self.mean


def remembers(self: Any, x: Tensor) -> Tensor:
    outputs = self.head(x)
    self.history.append(float(outputs.detach().mean()))
    return outputs


def draws_once(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = torch.randn(4)
    return self.head(x * self.kept)


def freezes(self: Any, x: Tensor) -> Tensor:
    self.head.bias.requires_grad_(False)
    return self.head(x)


def counts_elsewhere(self: Any, x: Tensor) -> Tensor:
    return self.head(x * (1 + next(_counted)))


# What a resumed run has as well, or makes again.


def fills_a_cache(self: Any, x: Tensor) -> Tensor:
    if self.kept is None:
        self.kept = torch.arange(4.0)
    return self.head(x * self.kept)


def fills_a_table(self: Any, x: Tensor) -> Tensor:
    table = self.tables.setdefault(tuple(x.shape), torch.arange(4.0))
    return self.head(x * table)


def grows_a_cache(self: Any, x: Tensor) -> Tensor:
    self.calls = max(self.calls, len(x))
    self.mean = torch.arange(float(self.calls))
    return self.head(x + self.mean[: len(x), None])


def shows_its_work(self: Any, x: Tensor) -> Tensor:
    outputs = self.head(x + torch.rand_like(x))
    self.kept, self.calls, self.shape = outputs, float(outputs.detach().sum()), tuple(x.shape)
    return outputs


def counts_in_a_buffer(self: Any, x: Tensor) -> Tensor:
    self.count += 1
    return self.head(x) * (1 + 1 / self.count)


def draws_seeded(self: Any, x: Tensor) -> Tensor:
    return self.head(x + rng.generator().random() + random.random())


def built(forward: Callable[[Any, Tensor], Tensor], **members: Any) -> nn.Module:
    torch.manual_seed(0)
    return Inside(type("Built", (Model,), {"forward": forward, **members})())


def training(model: nn.Module, strict: bool = True) -> TrainingState:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    task = tasks.Classification()
    return TrainingState(model, optimizer, task, torch.device("cpu"), strict=strict)


def train(trained: TrainingState, shape: tuple[int, ...] = (4,), watched: bool = True) -> list[str]:
    """Take three steps of batches of several lengths; return the warnings."""
    said: list[str] = []
    watch = Watch(trained, said.append)
    for step, size in enumerate((BATCH_SIZE, BATCH_SIZE - 2, BATCH_SIZE), 1):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(size, *shape, generator=generator)
        batches = [Batch(torch.arange(size), inputs, torch.arange(size) % CLASSES)]
        if watched:
            watch(batches, step, 0)
        train_step(trained, batches, step, Shards(), False, None)
    return said


@pytest.mark.parametrize(
    ("forward", "path"),
    [
        (counts, "model.layer.calls"),
        (counts_for_later, "model.layer.calls"),
        (draws_torch, "model.layer.torch_draws"),
        (draws_numpy, "model.layer.numpy_draws"),
        (draws_python, "model.layer.draws"),
        (averages, "model.layer.mean"),
        (averages_in_place, "model.layer.mean"),
        (remembers, "model.layer.history[2]"),
        (draws_once, "model.layer.kept"),
        (freezes, "model.layer.head.bias.requires_grad"),
        (counts_elsewhere, "model"),
    ],
)
def test_state_that_no_checkpoint_holds_is_named(forward: Any, path: str) -> None:
    """With its module and attribute; other presets than strict resume with a warning, or none."""
    with pytest.raises(InputError) as refused:
        train(training(built(forward)))
    assert str(refused.value).startswith(f"{path}: expected "), refused.value
    assert "\n" not in str(refused.value)
    said = train(training(built(forward), strict=False))
    assert said == [] or said[0].startswith(f"warning: {path}: expected state that a checkpoint")


@pytest.mark.parametrize("forward", [counts, draws_torch, averages_in_place, remembers])
def test_presets_that_promise_no_bits_warn_once(forward: Any) -> None:
    """The run goes on."""
    assert len(train(training(built(forward), strict=False))) == 1


@pytest.mark.parametrize(
    "forward",
    [
        fills_a_cache, fills_a_table, grows_a_cache, shows_its_work, counts_in_a_buffer,
        draws_seeded,
    ],
)  # fmt: skip
def test_what_a_resumed_run_makes_again_is_not_refused(forward: Any) -> None:
    """Negative control: caches, what is written before it is read, buffers, seeded draws."""
    for strict in (True, False):
        assert train(training(built(forward), strict)) == []


def test_a_module_with_an_extra_state_is_responsible_for_it() -> None:
    """Checkpoints hold what get_extra_state returns; without it the same module is refused."""

    def get(self: Any) -> int:
        return int(self.calls)

    def put(self: Any, calls: int) -> None:
        self.calls = calls

    carried = built(counts, get_extra_state=get, set_extra_state=put)
    assert train(training(carried)) == []
    with pytest.raises(InputError, match=r"layer\.calls"):
        train(training(built(counts)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 5, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x).mean(1))


class Teacher(nn.Module):
    """A copy that follows the weights in each forward pass of training (BYOL, mean teacher)."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(4, CLASSES), nn.Linear(4, CLASSES)
        self.teacher.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                old.lerp_(new, 0.5)
        return self.student(x) + self.teacher(x)


def normalised() -> nn.Module:
    """Return layers with weights that are computed before each forward pass."""
    new = nn.utils.parametrizations
    return nn.Sequential(
        nn.utils.spectral_norm(nn.Linear(4, 8)), nn.BatchNorm1d(8), nn.Dropout(0.1),
        new.spectral_norm(nn.Linear(8, 8)), new.weight_norm(nn.Linear(8, CLASSES)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (Recurrent, (6, 4)),
        (Attention, (6, 4)),
        (normalised, (4,)),
        (Teacher, (4,)),
        (lambda: torchvision.models.resnet18(num_classes=CLASSES), (3, 16, 16)),
    ],
)
def test_models_of_others_pass_and_no_bit_of_them_changes(build: Any, shape: Any) -> None:
    """What is looked at before a step is put back: the same weights and buffers as unwatched."""
    found = []
    for watched in (True, False):
        torch.manual_seed(0)
        trained = training(build())
        assert train(trained, shape, watched) == []
        found.append([t.numpy().tobytes() for t in trained.model.state_dict().values()])
    assert found[0] == found[1]


@pytest.mark.parametrize("forward", [counts, draws_torch, averages_in_place, draws_numpy])
def test_what_is_looked_at_is_put_back(forward: Any) -> None:
    """Also where it is only warned of: the same weights as unwatched."""
    watched, other = (training(built(forward), strict=False) for _ in "ab")
    train(watched), train(other, watched=False)
    for a, b in zip(watched.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_task_is_looked_at_as_well() -> None:
    """A loss that anneals by a count of its own."""

    class Annealed(tasks.Classification):
        def __init__(self) -> None:
            object.__setattr__(self, "label_smoothing", 0.0)
            object.__setattr__(self, "calls", 0)

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            object.__setattr__(self, "calls", self.calls + 1)
            return super().loss(outputs, targets) / self.calls

    model = nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    annealed = TrainingState(model, optimizer, Annealed(), torch.device("cpu"), strict=True)
    with pytest.raises(InputError, match=r"^task\.calls: "):
        train(annealed)
