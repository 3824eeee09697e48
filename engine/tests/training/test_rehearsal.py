"""A run that resumes itself finds what no checkpoint holds; what a resume makes again passes."""

import gc
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import tasks
from seedbed.data.source import Batch
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.training import loop
from seedbed.training.loop import Logger
from seedbed.training.optimizers import optimizer_tensors
from seedbed.training.rehearsal import Rebuilt, Rehearsal
from seedbed.training.shards import Shards
from seedbed.training.state import Plan, Progress, TrainingState
from tests.odd_optimizers import Master, NumPyScale

BATCH_SIZE, CLASSES, STEPS = 8, 3, 4
Build = Callable[[], TrainingState]


@pytest.fixture(scope="module", autouse=True)
def _imports_kept() -> Iterator[None]:
    """As in a training process: to look through what imports have made takes 0.1 s a time."""
    gc.freeze()
    yield
    gc.unfreeze()


class Model(nn.Module):
    """A linear layer, and somewhere to keep things."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, CLASSES)
        self.calls = 0


# State of a model that a resumed run lacks.


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.head(x) * (1 + 1 / self.calls)


def unsteady_in_evaluation(self: Any, x: Tensor) -> Tensor:
    self.calls += self.training
    return self.head(x) * (1 if self.training else self.calls)


# What a resumed run has as well, makes again, or does not need.


def normalises_in_place(self: Any, x: Tensor) -> Tensor:
    x.sub_(0.5).div_(0.7)
    return self.head(x)


def freezes(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.head.bias.requires_grad_(False)
    return self.head(x)


def switches_modes(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.head.eval()
    return self.head(x) * (1 if self.head.training else 2)


def built(forward: Callable[[Any, Tensor], Tensor], **members: Any) -> nn.Module:
    return type("Built", (Model,), {"forward": forward, **members})()


def plain() -> nn.Module:
    return built(lambda self, x: self.head(x))


def state(
    model: Callable[[], nn.Module] = plain,
    optimizer: Any = torch.optim.SGD,
    method: Callable[[], Supervised] = lambda: Supervised(tasks.Classification()),
    strict: bool = True,
) -> TrainingState:
    torch.manual_seed(0)
    network, way = model(), method()
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizers = {"optimizer": optimizer(trained, lr=0.01)}
    return TrainingState(network, optimizers, way, torch.device("cpu"), strict=strict)


def batch(step: int) -> Batch:
    size = BATCH_SIZE - step % 2 * 2  # of several lengths
    inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(step))
    return Batch(torch.arange(size), inputs, torch.arange(size) % CLASSES)


def train(
    build: Build,
    rehearsed: bool = True,
    every_steps: int = 0,
    factor: Callable[[int], float] = lambda step: 1 - step / 10,
    batch: Callable[..., Batch] = batch,
    shards: Shards | None = None,
) -> TrainingState:
    """Train a few steps in a loop that rehearses its resume; return what was trained."""
    trained = build()

    shards = shards or Shards()

    def slices(step: int) -> list[Batch]:
        return [batch(step + 2 * shard) for shard in shards.mine]

    def rebuild(step: int) -> Rebuilt:
        return Rebuilt(build(), slices(step), factor(step - 1))

    plan = Plan(STEPS, STEPS, 1, 0, 0, 0, None, factor)
    rehearsal = Rehearsal(rebuild, lambda: [batch(9)], rehearsed, every_steps)
    batches = (each for step in itertools.count(1) for each in slices(step))
    held_out = [batch(9)]
    loop.fit(trained, plan, Progress(), batches, lambda: held_out, Logger(), shards, rehearsal)
    return trained


def bits(trained: TrainingState) -> list[bytes]:
    tensors = [*trained.model.state_dict().values()]
    tensors += optimizer_tensors(*trained.optimizers.values())
    return [torch.as_tensor(each).detach().contiguous().numpy().tobytes() for each in tensors]


def refused(build: Build, **chosen: Any) -> str:
    """Return the line with which a run was refused; unrehearsed, it goes on."""
    with pytest.raises(InputError) as error:
        train(build, **chosen)
    assert "\n" not in str(error.value)
    return str(error.value)


def require_unchanged(build: Build) -> None:
    """Require that a run passes, also in each step, to the bits of one that is not rehearsed."""
    found = [
        bits(train(build, rehearsed, every))
        for rehearsed, every in ((False, 0), (True, 0), (True, 1))
    ]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    ("forward", "stage", "hint"),
    [
        (counts, "loss", "model.calls"),
        (unsteady_in_evaluation, "evaluation", "model.calls"),
    ],
)
def test_state_of_a_model_that_no_checkpoint_holds_is_refused(
    forward: Any, stage: str, hint: str
) -> None:
    """By the first stage that differs, and what a step changes beside the tensors."""
    line = refused(partial(state, partial(built, forward)))
    assert line.startswith(f"model: expected the same {stage} in step 2 from a run that is resumed")
    assert hint in line
    train(partial(state, partial(built, forward), strict=False))


@pytest.mark.parametrize("forward", [normalises_in_place, freezes, switches_modes])
def test_what_a_resumed_run_makes_again_or_does_not_need_passes(forward: Any) -> None:
    require_unchanged(partial(state, partial(built, forward)))


# Optimizers that keep something beside their state, and others.


class Counting(torch.optim.SGD):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.k = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.k += 1
        for group in self.param_groups:
            group["lr"] = 0.01 / self.k
        super().step()


class Saving(Counting):
    """Knows what to save."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "k": self.k}

    def load_state_dict(self, state_dict: Any) -> None:
        self.k = state_dict.pop("k")
        super().load_state_dict(state_dict)


class Wide(Saving):
    """Its own `load_state_dict` calls PyTorch's, which casts float64 to the dtype of weights."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                sums = self.state[parameter]
                sums["sum"] = sums.get("sum", 0) + parameter.grad.double() / 3
                parameter.sub_(sums["sum"])


@pytest.mark.parametrize("optimizer", [Counting, Wide])
def test_what_an_optimizer_keeps_beside_its_state_is_refused(optimizer: Any) -> None:
    line = refused(partial(state, optimizer=optimizer))
    assert line.startswith("optimizer: expected the same weights in step 2"), line


class Keyed(torch.optim.SGD):
    """Keeps an entry under a key that `state_dict` takes for the number of a parameter."""

    key: Any = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        self.state[self.key] = {"momentum_buffer": torch.ones(1)}


@pytest.mark.parametrize("key", [0, torch.zeros(1)], ids=["number", "tensor"])
def test_keys_that_a_state_dict_confuses_are_refused(key: Any) -> None:
    optimizer = partial(type("Odd", (Keyed,), {"key": key}), momentum=0.9)
    assert refused(partial(state, optimizer=optimizer)).startswith(("optimizer", "checkpoint"))


def test_what_no_file_brings_back_is_named_under_every_preset() -> None:
    """By the entry and its type, in the second step."""
    for strict in (True, False):
        line = refused(partial(state, optimizer=NumPyScale, strict=strict))
        assert line.startswith("optimizer.state.scale: expected tensors, numbers, texts")
        assert "numpy.float64" in line


@pytest.mark.parametrize("optimizer", [Master, Saving, partial(torch.optim.AdamW, fused=True)])
def test_optimizers_that_go_on_from_a_checkpoint_pass(optimizer: Any) -> None:
    """Also with a learning-rate scheduler's patch and a hook on them."""

    def with_hooks() -> TrainingState:
        trained = state(optimizer=optimizer)
        torch.optim.lr_scheduler.StepLR(trained.optimizers["optimizer"], 10)
        trained.optimizers["optimizer"].register_step_post_hook(lambda *_: None)
        return trained

    require_unchanged(with_hooks)


class Orthogonal(Supervised):
    """Puts weights in another memory order after each step."""

    in_place = False

    def on_step_end(self, model: Any, step: int) -> None:
        orthogonal = torch.linalg.qr(model.head.weight.T)[0].contiguous().T
        if self.in_place:
            model.head.weight.copy_(orthogonal)
        else:
            model.head.weight.data = orthogonal


def test_weights_in_another_memory_order_are_restored_so() -> None:
    """A fused optimizer would pair them with moments as they lie: that is refused."""
    method = partial(Orthogonal, tasks.Classification())
    plain = partial(torch.optim.AdamW, foreach=False)
    require_unchanged(partial(state, optimizer=plain, method=method))
    assert train(partial(state, method=method)).model.head.weight.stride() == (1, 3)
    fused = partial(torch.optim.AdamW, fused=True)
    line = refused(partial(state, optimizer=fused, method=method))
    assert line.startswith("optimizer: expected exp_avg of shape, dtype and strides")
    method = partial(type("InPlace", (Orthogonal,), {"in_place": True}), tasks.Classification())
    require_unchanged(partial(state, optimizer=fused, method=method))


def test_the_one_before_is_freed_before_another_is_built() -> None:
    """There is memory for one model."""
    alive: list[int] = []

    class Counted(nn.Linear):
        def __init__(self) -> None:
            import weakref

            super().__init__(4, CLASSES)
            alive.append(1)
            weakref.finalize(self, alive.pop)
            self.most = len(alive)

    assert train(partial(state, Counted)).model.most == 1


def test_shards_go_on_with_the_model_that_was_built_anew() -> None:
    """Four slices of a batch, on one process."""
    build = partial(state, optimizer=torch.optim.AdamW)
    a, b = (train(build, rehearsed=rehearsed, shards=Shards(4)) for rehearsed in (False, True))
    assert bits(a) == bits(b)
