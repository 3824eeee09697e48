"""Models, methods, optimizers and data sets with state, sorted by its effect on a
resumed run.

Harmful state changes the first step of that run, or an evaluation. Late state changes
only later steps, which a rehearsal of two steps cannot see. Harmless state never
changes a bit.
"""

import array
import contextvars
import functools
import os
import random
import string
import tempfile
import threading
import time
import types
from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed import rng
from seedbed.methods import Supervised
from seedbed.pipeline.source import Batch
from tests import tiny
from tests.odd_optimizers import SAM, NumPyScale

FEATURES = 4
CLASSES = 3
SAMPLES = 12
Forward = Callable[[Any, Tensor], Tensor]


class Model(nn.Module):
    """Two linear layers, and attributes in which a forward function may keep state."""

    scale = 1.0

    def __init__(self, forward: Forward | None = None) -> None:
        super().__init__()
        self.head = nn.Linear(FEATURES, CLASSES)
        self.wide = nn.Linear(FEATURES, FEATURES)
        self.own = forward
        self.kept = {}
        self.calls = 0
        self.history: list[float] = []
        self.draws = torch.Generator()

    def forward(self, x: Tensor) -> Tensor:
        return self.own(self, x) if self.own else self.head(self.wide(x))


class Data:
    """Points and their classes."""

    def __init__(self) -> None:
        self.points = torch.from_numpy(
            rng.uniform(1, np.arange(SAMPLES), FEATURES)
        ).float()
        self.calls = 0
        self.kept = {}

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.change(self.points[index], index), index % CLASSES

    def change(self, x: Tensor, index: int) -> Any:
        return x


_holder = Data()


@dataclass(frozen=True)
class Case:
    """The parts of a training; the defaults are harmless."""

    model: Callable[[], nn.Module] = Model
    method: Callable[[Any], Supervised] = Supervised
    optimizer: Any = torch.optim.SGD
    data: Callable[[], Any] = Data
    # the data sets of validation and test, if another
    held_out: Callable[[], Any] | None = None


def words(name: str, *more: str) -> tuple[str, ...]:
    """Return a command line that trains a case for three epochs of two steps."""
    here = f"{__name__}.build"
    data = tiny.DATA | {"batch_size": 6, "eval_batch_size": 5}
    for number, split in enumerate(("train", "validation", "test")):
        data[split] = {"_target_": f"{here}_data", "case": name, "number": number}
    model = {"name": "case", "_target_": f"{here}_model", "case": name}
    return (
        *tiny.overrides(model, data),
        *tiny.replaced("method", f"{here}_method", case=name),
        *tiny.replaced("optimizer", f"{here}_optimizer", case=name, lr=0.05),
        *("determinism.threads=1", "trainer.max_epochs=3", "trainer.log_every_steps=1"),
        *("schedule=constant", *more),
    )


def case_of(name: str) -> Case:
    return {**HARMFUL, **LATE, **HARMLESS, **EVALUATIONS, **LEFT_BY_STEPS, **OTHERS}[
        name
    ]


def build_model(case: str) -> nn.Module:
    return case_of(case).model()


def build_method(case: str) -> Supervised:
    return case_of(case).method(None)


def build_optimizer(parameters: Any, case: str, lr: float) -> torch.optim.Optimizer:
    made: torch.optim.Optimizer = case_of(case).optimizer(parameters, lr=lr)
    return made


def build_data(case: str, number: int) -> Any:
    """Return the data set of a split by its number; those of validation and test come
    later."""
    found = case_of(case)
    made: Any = (found.held_out or found.data if number else found.data)()
    made.points = made.points + number  # splits that repeat each other are refused
    return made


def forward(function: Forward) -> Case:
    return Case(model=functools.partial(Model, function))


# Models.


def counts(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.head(x) * (1 + 1 / self.calls)


def counts_evaluations(self: Any, x: Tensor) -> Tensor:
    self.calls += self.training
    return self.head(x) * (1 if self.training else self.calls)


def shrinks_its_class(self: Any, x: Tensor) -> Tensor:
    type(self).scale *= 0.5
    return self.head(x) * (1 + self.scale)


def noise(width: int = FEATURES) -> Tensor:
    return torch.randn(width)


def drawn_in_a_closure() -> Callable[[], Tensor]:
    kept: Any = None

    def draw() -> Tensor:
        nonlocal kept
        kept = noise() if kept is None else kept
        return kept

    return draw


def drawn_into_an_array() -> Tensor:
    if not _array.any():
        _array[:] = noise().numpy()
    return torch.from_numpy(_array).float()


class Drawn:
    @staticmethod
    def into_a_default(kept: list[Tensor] = []) -> Tensor:  # noqa: B006
        kept[:] = kept or [noise()]
        return kept[0]


cached = functools.lru_cache(noise)
_of_closure = drawn_in_a_closure()
_tables: dict[int, Tensor] = {}
_array = np.zeros(FEATURES)
_of_partial = functools.partial(Drawn.into_a_default, [])


def multiplied_by(kept: Callable[[], Tensor]) -> Case:
    """Return a case whose model multiplies its inputs by numbers that were drawn once
    and kept."""
    return forward(lambda self, x: self.head(x * kept()))


def begins_later(self: Any, x: Tensor) -> Tensor:
    self.calls += self.training
    return self.head(x) * (2 if self.calls > 3 else 1)


def freezes(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.head.bias.requires_grad_(False)
    return self.head(x)


def switches_modes(self: Any, x: Tensor) -> Tensor:
    if self.training:
        self.head.eval()
    return self.head(x) * (1 if self.head.training else 2)


def keeps_statistics(self: Any, x: Tensor) -> Tensor:
    outputs = self.head(x)
    self.history.append((float(outputs.detach().mean()), time.perf_counter()))
    return outputs


def caches_by_shape(self: Any, x: Tensor) -> Tensor:
    return self.head(
        x * self.kept.setdefault(x.shape, torch.arange(1.0, 1 + x.shape[1]))
    )


positions = functools.lru_cache(torch.arange)
_expanded = torch.ones(1).expand(FEATURES)
with torch.inference_mode():
    _made_for_inference = torch.ones(FEATURES)


def multiplies_constants(self: Any, x: Tensor) -> Tensor:
    return self.head(x * _expanded * _made_for_inference.clone() + positions(FEATURES))


def draws_seeded(self: Any, x: Tensor) -> Tensor:
    return self.head(x + rng.generator().random() + random.random() + torch.rand(()))


class Remembers(nn.Module):
    """Creates, fills, enlarges, casts and drops buffers in training, persistent or
    not."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.persistent = persistent
        self.inner = nn.Linear(FEATURES, CLASSES)
        self.inner.register_buffer("filled", None, persistent=persistent)
        self.register_buffer("grown", torch.zeros(1), persistent=persistent)
        self.register_buffer("cast", torch.zeros(3), persistent=persistent)
        self.register_buffer("dropped", torch.zeros(2), persistent=persistent)
        self.register_buffer("counted", torch.zeros(2), persistent=persistent)
        self.register_buffer("spread", torch.arange(3.0).expand(4, 3), persistent=False)
        self.register_buffer("sparse", torch.eye(3).to_sparse(), persistent=persistent)
        self.listed = [self.counted]  # user code may hold references
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            if not hasattr(self, "made"):
                self.register_buffer(
                    "made", torch.ones(5).double() / 3, self.persistent
                )
            self.inner.filled = x.mean(0)
            self.grown = torch.cat((self.grown, x[:1, 0]))
            self.cast = self.cast.double() + x.mean().double() / 3
            self.dropped = None  # type: ignore[assignment]
            self.listed[0] += 1
            self.scale *= 1.01
        made = getattr(self, "made", torch.zeros(()))  # none before the first step
        return self.inner(x) * float(self.cast.sum() + made.sum()) * self.scale

    def get_extra_state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


# Methods.


class Momentum(Supervised):
    """Divides each loss by a decaying sum of the losses so far."""

    level: Any = None

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        loss: Any = nn.functional.cross_entropy(model(batch.inputs), batch.targets)
        self.level = (
            loss.detach() if self.level is None else 0.9 * self.level + loss.detach()
        )
        return loss / self.level


class Smoothing(Supervised):
    """Logs a smoothed loss, kept in an attribute on which training does not depend."""

    smooth = 0.0

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        returned: Any = super().training_step(model, batch, optimizer)
        self.smooth = 0.9 * self.smooth + float(returned["loss"].detach())
        return {**returned, "smooth": self.smooth}


class Orthogonal(Supervised):
    """Makes a weight orthogonal after each step: in another memory order, unless
    `in_place`."""

    in_place = False

    def on_step_end(self, model: Any, step: int) -> None:
        orthogonal = torch.linalg.qr(model.wide.weight.T)[0].contiguous().T
        if self.in_place:
            model.wide.weight.copy_(orthogonal)
        else:
            model.wide.weight.data = orthogonal


class OrthogonalInPlace(Orthogonal):
    in_place = True


# Optimizers.


class Hiding(torch.optim.Optimizer):
    """Wraps another optimizer without exposing its state."""

    def __init__(self, parameters: Any, lr: float) -> None:
        self.base = torch.optim.SGD(parameters, lr, momentum=0.9)
        super().__init__(self.base.param_groups, self.base.defaults)

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.base.step()


class Sharing(Hiding):
    """Shares the state of the wrapped optimizer, so that checkpoints hold it."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.state = self.base.state
        self.param_groups = self.base.param_groups


class Lookahead(Sharing):
    """Follows the wrapped optimizer with slow weights, kept in the shared state."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        super().step()
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                slow = self.state[parameter].setdefault("slow", parameter.clone())
                parameter.copy_(slow.lerp_(parameter, 0.5))


class Centralised(Sharing):
    """Subtracts the mean from gradients before the wrapped optimizer uses them."""

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None and parameter.dim() > 1:
                parameter.grad = parameter.grad - parameter.grad.mean(1, keepdim=True)
        super().step()


class OnParameters(torch.optim.SGD):
    """Keeps its momentum in attributes of the parameters."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            if parameter.grad is not None:
                parameter.moving = (
                    0.9 * getattr(parameter, "moving", 0) + parameter.grad
                )
                parameter.sub_(parameter.moving, alpha=0.01)


class CountingSteps(torch.optim.SGD):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.k = 0

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.k += 1
        for group in self.param_groups:
            group["lr"] = 0.01 / self.k
        super().step()


class Saving(CountingSteps):
    """Includes its counter in the state dict."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "k": self.k}

    def load_state_dict(self, state_dict: Any) -> None:
        self.k = state_dict.pop("k")
        super().load_state_dict(state_dict)


def fused(parameters: Any, lr: float) -> torch.optim.Optimizer:
    """Return a fused AdamW that a scheduler has patched, with a post hook."""
    optimizer = torch.optim.AdamW(parameters, lr, fused=True)
    torch.optim.lr_scheduler.StepLR(optimizer, 10)
    optimizer.register_step_post_hook(lambda *_: None)
    return optimizer


# Data sets.


class Counting(Data):
    def change(self, x: Tensor, index: int) -> Any:
        self.calls += 1
        return x * self.calls


class Memoised(Data):
    """Caches samples with the noise drawn for them in the first epoch."""

    def change(self, x: Tensor, index: int) -> Any:
        return self.kept.setdefault(index, x + torch.rand(FEATURES))


class Cached(Data):
    """Caches samples without their noise, which is drawn anew each time."""

    def change(self, x: Tensor, index: int) -> Any:
        return self.kept.setdefault(index, x * 2) + torch.rand(FEATURES)


class Slotted:
    __slots__ = ("kept",)


def generates() -> Iterator[Tensor]:
    kept = noise()
    while True:
        yield kept


_slotted = Slotted()
_generated = generates()
_local = threading.local()
_context: contextvars.ContextVar[Any] = contextvars.ContextVar("kept")
_bytes = bytearray(4)
_numbers = array.array("d")
_namespace = types.SimpleNamespace()
_mapping: UserDict[int, Tensor] = UserDict()
__hidden: list[Tensor] = []
_file = os.path.join(tempfile.gettempdir(), f"seedbed-counted-{os.getuid()}")


def kept_in_a_slot() -> Tensor:
    _slotted.kept = getattr(_slotted, "kept", None)
    if _slotted.kept is None:
        _slotted.kept = noise()
    return _slotted.kept


def counted_in_the_environment() -> float:
    os.environ["SEEDBED_COUNT"] = str(int(os.environ.get("SEEDBED_COUNT", "0")) + 1)
    return float(os.environ["SEEDBED_COUNT"])


def counted_in_another_package() -> float:
    string.calls = getattr(string, "calls", 0) + 1  # type: ignore[attr-defined]
    return float(string.calls)  # type: ignore[attr-defined]


def counted_in_a_file() -> float:
    with open(_file, "a+") as file:
        file.write("x")
        return float(file.tell())


def kept_in_a_context() -> Any:
    if _context.get(None) is None:
        _context.set(noise())
    return _context.get()


def kept_in_bytes() -> float:
    if not any(_bytes):
        _bytes[:] = random.randbytes(4)
    return int.from_bytes(_bytes) / 2**32


def kept_in_numbers() -> float:
    if not _numbers:
        _numbers.append(random.random())
    return _numbers[0]


def kept_in_a_hidden_name() -> Tensor:
    if not __hidden:
        __hidden.append(noise())
    return __hidden[0]


class OwnGenerator(Data):
    """Draws from a generator of its own, made when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng(0)

    def change(self, x: Tensor, index: int) -> Any:
        return x + float(self.own.normal())


class Jitter:
    def __init__(self) -> None:
        self.shift: Any = None

    def __call__(self, x: Tensor) -> Tensor:
        self.shift = noise() if self.shift is None else self.shift
        return x + self.shift


class Compose:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, x: Tensor) -> Tensor:
        for transform in self.transforms:
            x = transform(x)
        return x


_compose = Compose(Jitter())


class Composed(Data):
    """Applies transforms of a module, one of which keeps what it drew first."""

    def change(self, x: Tensor, index: int) -> Any:
        return _compose(x)


class InPlace(Data):
    def change(self, x: Tensor, index: int) -> Any:
        return x.mul_(1.1).clone()


class Queue(Data):
    """Hands out numbers of a list, one after another."""

    def __init__(self) -> None:
        super().__init__()
        self.left = list(range(1000))

    def change(self, x: Tensor, index: int) -> Any:
        return x + self.left.pop()


class OfWorkers(Data):
    def change(self, x: Tensor, index: int) -> Any:
        return x * (2 if torch.utils.data.get_worker_info() else 1)


class LateDraws(Data):
    """Its last sample has another value each time; two batches of a rehearsal lack
    it."""

    def __init__(self) -> None:
        super().__init__()
        self.points = self.points.repeat(3, 1)
        self.own = np.random.default_rng(0)

    def __len__(self) -> int:
        return 3 * SAMPLES

    def change(self, x: Tensor, index: int) -> Any:
        return x + (float(self.own.normal()) if index == len(self) - 1 else 0)


class RunningMean(Supervised):
    """Smooths what a validation returns over all validations so far."""

    mean: Any = None

    def compute(self, values: Any) -> Any:
        means = super().compute(values)
        loss = means["loss"]
        self.mean = loss if self.mean is None else 0.9 * self.mean + 0.1 * loss
        return {**means, "loss": self.mean}


class CountsBatches(Supervised):
    batches = 0

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        self.batches += 1
        values = super().validation_step(model, batch)
        return {**values, "batches": torch.full((len(batch.ids),), float(self.batches))}


class Prototypes(Supervised):
    """Evaluates by the distance to the means of the last batch's inputs, one for each
    class.

    They are zero until the first step, as after a resume.
    """

    means: Any = None

    def prepare(self, model: nn.Module) -> None:
        if self.means is None:
            self.means = torch.zeros(CLASSES, FEATURES)

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        self.prepare(model)
        for label in range(CLASSES):
            of_class = batch.inputs[batch.targets == label]
            if len(of_class):
                self.means[label] = of_class.mean(0)
        return super().training_step(model, batch, optimizer)

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        self.prepare(model)
        values = super().validation_step(model, batch)
        distances = torch.cdist(batch.inputs, self.means)
        return {**values, "distance": distances.gather(1, batch.targets[:, None])[:, 0]}


class PrototypesInABuffer(Prototypes):
    """Keeps the prototypes where checkpoints find them."""

    def prepare(self, model: nn.Module) -> None:
        self.means = model.means


class AfterSteps(Supervised):
    """Scales the loss of evaluations by what the last step left."""

    scale = 1.0

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        values = super().validation_step(model, batch)
        return {**values, "scaled": torch.full((len(batch.ids),), float(self.scale))}


class Temperature(AfterSteps):
    """Evaluates with a temperature that is a function of the step."""

    def on_step_end(self, model: nn.Module, step: int) -> None:
        self.scale = 1 + 0.1 * step


class Centre(AfterSteps):
    """Keeps the mean of the last batch's inputs in a dictionary of a module."""

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        model.kept["centre"] = float(batch.inputs.mean())
        return super().training_step(model, batch, optimizer)

    def validation_step(self, model: Any, batch: Batch) -> Any:
        self.scale = model.kept.get("centre", 0.0)
        return super().validation_step(model, batch)


class PreviousWeights(AfterSteps):
    """Evaluates how far the last step moved the weights."""

    before: Any = None

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        self.before = model.head.weight.detach().clone()
        return super().training_step(model, batch, optimizer)

    def on_step_end(self, model: Any, step: int) -> None:
        self.scale = float((model.head.weight - self.before).norm())


class Flag(AfterSteps):
    """Evaluates in another way once a step has been taken."""

    def on_step_end(self, model: nn.Module, step: int) -> None:
        self.scale = 2.0


class Threshold(Supervised):
    """Predicts by the mean output of the last step's batch."""

    threshold: Any = 0.0

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        self.threshold = model(batch.inputs).detach().mean()
        return super().training_step(model, batch, optimizer)

    def validation_step(self, model: Any, batch: Batch) -> Any:
        values = super().validation_step(model, batch)
        return {**values, "predictions": values["outputs"][:, 0] - self.threshold}


class Tempered(AfterSteps):
    """Has a task whose probabilities, and nothing else, depend on what the last step
    left."""

    def on_step_end(self, model: nn.Module, step: int) -> None:
        self.scale = 1 + 0.1 * step

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        # The task is set after the method is built.
        object.__setattr__(
            self.task, "probabilities", lambda x: (x / self.scale).softmax(1)
        )
        return Supervised.validation_step(self, model, batch)


def model_with_means() -> nn.Module:
    model = Model()
    model.register_buffer("means", torch.zeros(CLASSES, FEATURES))
    return model


_vocabulary: dict[str, int] = {}


class Filled(Data):
    """Each split fills a table of the module when it is built; samples read all of
    it."""

    def __init__(self, split: str = "train") -> None:
        super().__init__()
        _vocabulary.setdefault(split, len(_vocabulary) + 1)

    def change(self, x: Tensor, index: int) -> Any:
        return x + sum(_vocabulary.values())


HARMFUL = {
    **{f.__name__: forward(f) for f in (counts, counts_evaluations, shrinks_its_class)},
    "a generator of torch": forward(
        lambda self, x: self.head(x + torch.randn(x.shape, generator=self.draws))
    ),
    "a cache": multiplied_by(lambda: cached(FEATURES)),
    "a module's dictionary": multiplied_by(lambda: _tables.setdefault(0, noise())),
    "a closure": multiplied_by(lambda: _of_closure()),
    "an object": multiplied_by(lambda: _holder.kept.setdefault(0, noise())),
    "an array": multiplied_by(drawn_into_an_array),
    "a default of a static method": multiplied_by(lambda: Drawn.into_a_default()),
    "an argument of a partial": multiplied_by(lambda: _of_partial()),
    "a slot": multiplied_by(kept_in_a_slot),
    "a generator object": multiplied_by(lambda: next(_generated)),
    "a thread's variable": multiplied_by(
        lambda: vars(_local).setdefault("kept", noise())
    ),
    "a context variable": multiplied_by(kept_in_a_context),
    "bytes": multiplied_by(kept_in_bytes),
    "an array of numbers": multiplied_by(kept_in_numbers),
    "a namespace": multiplied_by(lambda: vars(_namespace).setdefault("kept", noise())),
    "a mapping of a class": multiplied_by(lambda: _mapping.setdefault(0, noise())),
    "a hidden name": multiplied_by(kept_in_a_hidden_name),
    "the environment": multiplied_by(counted_in_the_environment),
    "another package": multiplied_by(counted_in_another_package),
    **{c.__name__: Case(optimizer=c) for c in (Hiding, OnParameters, CountingSteps)},
    "Momentum": Case(method=Momentum),
    **{c.__name__: Case(data=c) for c in (Counting, OwnGenerator, Composed, Queue)},
}
# In the sets of validation and test, or in what evaluates them.
EVALUATIONS = {
    **{
        f"{c.__name__} held out": Case(held_out=c)
        for c in (Counting, OwnGenerator, InPlace, Queue, OfWorkers)
    },
    **{c.__name__: Case(method=c) for c in (RunningMean, CountsBatches)},
}
# A step leaves what only evaluations read; a resumed run evaluates before its first
# step, too.
LEFT_BY_STEPS = {
    c.__name__: Case(method=c)
    for c in (
        Prototypes,
        Temperature,
        Centre,
        PreviousWeights,
        Flag,
        Threshold,
        Tempered,
    )
}
LATE = {
    "begins_later": forward(begins_later),
    "Memoised": Case(data=Memoised),
    "InPlace": Case(data=InPlace, held_out=Data),
}
HARMLESS = {
    **{
        f.__name__: forward(f)
        for f in (
            keeps_statistics,
            caches_by_shape,
            draws_seeded,
            multiplies_constants,
            freezes,
            switches_modes,
        )
    },
    "normalises_in_place": forward(lambda self, x: self.head(x.sub_(0.5).div_(0.7))),
    "Remembers": Case(model=functools.partial(Remembers, persistent=True)),
    "Remembers in others": Case(model=functools.partial(Remembers, persistent=False)),
    "Orthogonal": Case(method=Orthogonal),
    **{
        c.__name__: Case(optimizer=c)
        for c in (Sharing, Lookahead, Centralised, Saving, fused)
    },
    "SAM": Case(optimizer=functools.partial(SAM, rho=0.1)),
    "OrthogonalInPlace": Case(method=OrthogonalInPlace, optimizer=fused),
    "scripted": Case(
        model=lambda: nn.Sequential(
            torch.jit.script(nn.BatchNorm1d(FEATURES)), nn.Linear(FEATURES, CLASSES)
        )
    ),
    "PrototypesInABuffer": Case(model=model_with_means, method=PrototypesInABuffer),
    "Cached": Case(data=Cached),
    "Filled": Case(data=Filled),
}
OTHERS = {
    "plain": Case(),
    "Smoothing": Case(method=Smoothing),
    "late draws": Case(held_out=LateDraws),
    "unwritten": forward(lambda self, x: self.head(x) + torch.empty(len(x), CLASSES)),
    "unseeded": forward(lambda self, x: self.head(x + random.SystemRandom().random())),
    "a file": multiplied_by(counted_in_a_file),
    "NumPyScale": Case(optimizer=NumPyScale),
    "unlike": Case(method=Orthogonal, optimizer=fused),
}
