"""State that no checkpoint holds is noticed in the first steps, and caches are not."""

import argparse
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor, nn

from seedbed import rng, tasks
from seedbed.data.source import Batch
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.training.optimizer_tensors import optimizer_tensors
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from seedbed.training.unsaved import Watch
from tests.odd_optimizers import Master

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
        self.number, self.options = np.int64(0), argparse.Namespace(calls=0)
        self.register_buffer("count", torch.zeros(()))
        self.slow = nn.Parameter(torch.ones(CLASSES, 4), requires_grad=False)


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


def counts_by_numpy(self: Any, x: Tensor) -> Tensor:
    self.number += np.int64(1)
    return self.head(x) * (2 if self.number > 1000 else 1)


def counts_in_options(self: Any, x: Tensor) -> Tensor:
    self.options.calls += 1
    return self.head(x) * (2 if self.options.calls > 1000 else 1)


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


def averages_weights(self: Any, x: Tensor) -> Tensor:
    """Let slow weights, which no optimizer changes, follow the others, as MoCo and EMA do."""
    with torch.no_grad():
        self.slow.mul_(0.9).add_(self.head.weight, alpha=0.1)
    return self.head(x) + x @ self.slow.T


def normalises_in_place(self: Any, x: Tensor) -> Tensor:
    x.sub_(0.5).div_(0.7)
    return self.head(x)


def built(forward: Callable[[Any, Tensor], Tensor], **members: Any) -> nn.Module:
    torch.manual_seed(0)
    return Inside(type("Built", (Model,), {"forward": forward, **members})())


def training(model: nn.Module, strict: bool = True, optimizer: Any = None) -> TrainingState:
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = (optimizer or torch.optim.SGD)(trained, lr=0.01)
    task = tasks.Classification()
    return TrainingState(
        model, {"optimizer": optimizer}, Supervised(task), torch.device("cpu"), strict=strict
    )


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
        (counts_by_numpy, "model.layer.number"),
        (counts_in_options, "model.layer.options.calls"),
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
        draws_seeded, averages_weights, normalises_in_place,
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


@pytest.mark.parametrize(
    "forward",
    [
        counts, draws_torch, averages_in_place, draws_numpy, averages_weights, normalises_in_place,
    ],
)  # fmt: skip
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
    annealed = TrainingState(
        model, {"optimizer": optimizer}, Supervised(Annealed()), torch.device("cpu"), strict=True
    )
    with pytest.raises(InputError, match=r"^task\.calls: "):
        train(annealed)


def test_a_task_that_is_a_module_has_no_buffers_in_a_checkpoint() -> None:
    """A loss with a centre in a buffer, as self-distillation has it."""

    class Centred(nn.Module):
        metric_name, higher_is_better = "accuracy", True

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("centre", torch.zeros(CLASSES))

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            loss = nn.functional.cross_entropy(outputs - self.centre, targets)
            self.centre.mul_(0.9).add_(outputs.detach().mean(0), alpha=0.1)
            return loss

        def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return (outputs.argmax(1) == targets).float()

    model = nn.Linear(4, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    task: Any = Centred()
    with pytest.raises(InputError, match=r"^task\.centre: .* keep it in a buffer of the model"):
        train(
            TrainingState(
                model, {"optimizer": optimizer}, Supervised(task), torch.device("cpu"), strict=True
            )
        )


def test_what_a_metric_keeps_for_the_loss_is_named() -> None:
    """Steps that are logged call it, others do not: also a task that has not been called yet."""

    class Focused(tasks.Classification):
        def __init__(self) -> None:
            object.__setattr__(self, "label_smoothing", 0.0)
            object.__setattr__(self, "right", 0.0)

        def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
            return super().loss(outputs, targets) * (2 - self.right)

        def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
            found = super().metric(outputs, targets)
            object.__setattr__(self, "right", float(found.mean()) + 0.25)
            return found

    trained = replace(training(built(fills_a_cache)), method=Supervised(Focused()))
    with pytest.raises(InputError, match=r"^task\.right: .* keep it in a buffer of the model"):
        train(trained)
    assert trained.method.task.right == 0.0  # type: ignore[attr-defined]


# Optimizers that keep something beside their state, and where; and others that may.


class Counting(torch.optim.SGD):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.k = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.k += 1
        for group in self.param_groups:
            group["lr"] = 0.01 / self.k
        super().step()


class Anchored(torch.optim.SGD):
    """Draws to where it began, noted in the first step: it changes once, and never again."""

    anchor: Any = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        if self.anchor is None:
            self.anchor = [p.clone() for p in parameters]
        for parameter, began in zip(parameters, self.anchor, strict=True):
            parameter.lerp_(began, 0.1)
        super().step()


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer, whose state is its own alone."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.base = torch.optim.SGD(parameters, lr, momentum=0.9)
        super().__init__(self.base.param_groups, self.base.defaults)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.base.step()


class Sharing(Lookahead):
    """Negative control: what the other one keeps is in the checkpoint, too."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.state = self.base.state
        self.param_groups = self.base.param_groups


class Showing(torch.optim.AdamW):
    """Negative control: writes before it reads."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        gradients = [
            p.grad for group in self.param_groups for p in group["params"] if p.requires_grad
        ]
        self.norm = float(torch.nn.utils.get_total_norm(g for g in gradients if g is not None))
        super().step()


class Saving(Counting):
    """Negative control: knows what to save."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "k": self.k}

    def load_state_dict(self, state_dict: Any) -> None:
        self.k = state_dict.pop("k")
        super().load_state_dict(state_dict)


@pytest.mark.parametrize(
    ("optimizer", "path"),
    [
        (Counting, "optimizer.k"),
        (Anchored, "optimizer.anchor[0]"),
        (Lookahead, "optimizer.base.state[0]['momentum_buffer']"),
    ],
)
def test_what_an_optimizer_keeps_beside_its_state_is_named(optimizer: Any, path: str) -> None:
    with pytest.raises(InputError) as refused:
        train(training(built(fills_a_cache), optimizer=optimizer))
    assert str(refused.value).startswith(f"{path}: expected "), refused.value
    assert "keep it in self.state" in str(refused.value)
    assert "\n" not in str(refused.value)


# LBFGS asks for a function; SparseAdam for sparse gradients; Muon for matrices alone.
_OF_TORCH = [
    each for name, each in sorted(vars(torch.optim).items())
    if isinstance(each, type) and name not in ("Optimizer", "LBFGS", "SparseAdam", "Muon")
]  # fmt: skip


@pytest.mark.parametrize("optimizer", [*_OF_TORCH, Master, Sharing, Showing, Saving])
def test_optimizers_that_go_on_from_a_checkpoint_pass_unchanged(optimizer: Any) -> None:
    """With a learning-rate scheduler's patch and a hook on them; the bits are those unwatched."""
    found = []
    for watched in (True, False):
        trained = training(built(fills_a_cache), optimizer=optimizer)
        torch.optim.lr_scheduler.StepLR(trained.optimizers["optimizer"], 10)
        trained.optimizers["optimizer"].register_step_post_hook(lambda *_: None)
        assert train(trained, watched=watched) == []
        state = optimizer_tensors(trained.optimizers["optimizer"])
        found.append([t.detach().numpy().tobytes() for t in (*trained.model.parameters(), *state)])
    assert found[0] == found[1]


@pytest.mark.parametrize("optimizer", [Counting, Lookahead, Anchored])
def test_an_update_that_is_looked_at_is_put_back(optimizer: Any) -> None:
    """Also where it is only warned of: the same weights as unwatched."""
    watched, other = (training(built(fills_a_cache), False, optimizer) for _ in "ab")
    train(watched), train(other, watched=False)
    for a, b in zip(watched.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)
