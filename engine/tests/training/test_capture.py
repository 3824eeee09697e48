"""What is restored is what was captured: values, dtypes, memory order and Python types."""

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed import record
from seedbed.training import checkpoint, optimizers
from seedbed.training.optimizers import optimizer_tensors
from tests.odd_optimizers import AllKinds
from tests.test_fingerprint import of

DTYPES = (torch.float32, torch.bfloat16, torch.float64)
FLAGS = ("amsgrad", "centered", "decoupled_weight_decay", "foreach", "fused", "nesterov")
Build = Callable[[Any], torch.optim.Optimizer]


def usable() -> Iterator[Any]:
    """Yield PyTorch's optimizers in all variants, but for one that needs sparse gradients and one
    that takes no weights column by column (test_methods.py trains with it)."""
    for name in sorted(set(torch.optim.__all__) - {"Optimizer", "SparseAdam", "LBFGS"}):
        each = getattr(torch.optim, name)
        if not isinstance(each, type):
            continue
        arguments = inspect.signature(each).parameters
        always = {"momentum": 0.9} if "momentum" in arguments else {}
        for flag in ("", *FLAGS):
            if not flag or flag in arguments:
                options = always | ({flag: True} if flag else {})
                yield pytest.param(partial(each, lr=0.01, **options), id=f"{name} {flag}".strip())


def small_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return a model of matrices, always the same; one lies in memory column by column."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False))
    model[0].weight.data = model[0].weight.data.t().contiguous().t()
    return model.to(dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> None:
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step)
        inputs = torch.randn(8, 6, generator=generator).to(next(model.parameters()).dtype)

        def closure(inputs: Tensor = inputs) -> Tensor:
            optimizer.zero_grad()
            loss = model(inputs).float().square().mean()
            loss.backward()
            return loss

        closure()
        optimizer.step(closure)  # type: ignore[arg-type]


def through_a_file(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "last.pt"
    checkpoint.save({"format_version": record.FORMAT_VERSION} | state, path)
    return checkpoint.load(path)


def facts(value: Any) -> Any:
    """Return what two values have in common if they are the same: types, bits, memory order."""
    if isinstance(value, Tensor):
        bits = value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()
        return type(value), value.dtype, value.shape, value.stride(), bits
    if isinstance(value, dict):
        return type(value), [(key, facts(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [facts(item) for item in value]
    return type(value), repr(value)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return facts(checkpoint.capture_state(model, {"optimizer": optimizer}))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("build", [*usable(), AllKinds])
def test_every_optimizer_goes_on_as_if_never_stopped(
    build: Build, dtype: torch.dtype, tmp_path: Path
) -> None:
    """PyTorch's in every variant; others with master weights, counts, nested state, names."""
    model, other = small_model(dtype), small_model(dtype)
    optimizer, fresh = build(model.parameters()), build(other.parameters())
    train(model, optimizer, 0, 3)
    saved = through_a_file(checkpoint.capture_state(model, {"optimizer": optimizer}), tmp_path)
    checkpoint.restore_state(other, {"optimizer": fresh}, saved)
    before = state_of(model, optimizer)
    assert state_of(other, fresh) == before
    train(model, optimizer, 3, 6)
    train(other, fresh, 3, 6)
    assert state_of(other, fresh) == state_of(model, optimizer) != before


@pytest.mark.parametrize("build", [torch.optim.NAdam, torch.optim.ASGD, AllKinds])
def test_pytorch_alone_does_not_bring_it_back(build: Build) -> None:
    """Twin: `load_state_dict` casts the state of a bfloat16 model."""
    model, other = small_model(torch.bfloat16), small_model(torch.bfloat16)
    optimizer, fresh = build(model.parameters()), build(other.parameters())
    train(model, optimizer, 0, 3)
    other.load_state_dict(model.state_dict())
    fresh.load_state_dict(optimizer.state_dict())
    assert state_of(other, fresh) != state_of(model, optimizer)


def test_state_stays_on_the_cpu_where_it_was_and_moves_where_the_run_moved() -> None:
    """The device `meta` stands for a GPU: a table on the CPU beside parameters on a GPU."""
    there, here = (nn.Parameter(torch.zeros(2, device="meta")) for _ in range(2))
    optimizer, fresh = torch.optim.SGD([there]), torch.optim.SGD([here])
    optimizer.state[there] |= {"table": torch.ones(3), "moment": torch.zeros(2, device="meta")}
    captured = optimizers.capture_optimizer(optimizer)
    optimizers.restore_optimizer(fresh, captured)
    assert fresh.state[here]["table"].device.type == "cpu"
    assert fresh.state[here]["moment"].device.type == "meta"
    optimizers.restore_optimizer(fresh, captured | {"devices": ["cpu"]})
    assert fresh.state[here]["table"].device.type == "meta"


class Remembers(nn.Module):
    """Makes, fills, enlarges, casts and drops buffers in its first steps, persistent or not."""

    def __init__(self, persistent: bool) -> None:
        super().__init__()
        self.persistent = persistent
        self.inner = nn.Linear(6, 4, bias=False)
        self.inner.register_buffer("filled", None, persistent=persistent)
        self.register_buffer("grown", torch.zeros(1), persistent=persistent)
        self.register_buffer("cast", torch.zeros(3), persistent=persistent)
        self.register_buffer("dropped", torch.zeros(2), persistent=persistent)
        self.register_buffer("counted", torch.zeros(2), persistent=persistent)
        self.register_buffer("spread", torch.arange(3.0).expand(4, 3), persistent=False)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "made"):
            self.register_buffer("made", torch.ones(5).double() / 3, persistent=self.persistent)
        self.inner.filled = x.detach().mean(0)
        self.grown = torch.cat((self.grown, x.detach()[:1, 0].float()))
        self.cast = self.cast.double() + x.detach().mean().double() / 3
        self.dropped = None  # type: ignore[assignment]
        self.counted += 1
        self.scale = self.scale * 1.5
        return self.inner(x) * float(self.cast.sum() + self.made.sum()) * self.scale

    def get_extra_state(self) -> dict[str, Any]:
        return {"scale": self.scale}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.scale = state["scale"]


@pytest.mark.parametrize("persistent", [True, False])
def test_buffers_of_any_history_are_restored(persistent: bool, tmp_path: Path) -> None:
    """Made, filled, enlarged, cast or dropped in forward; `get_extra_state`, too."""
    model, other = Remembers(persistent), Remembers(persistent)
    build = partial(torch.optim.SGD, lr=0.01)
    optimizer, fresh = build(model.parameters()), build(other.parameters())
    train(model, optimizer, 0, 3)
    kept = other.counted
    assert state_of(other, fresh) != state_of(model, optimizer)
    checkpoint.restore_state(
        other,
        {"optimizer": fresh},
        through_a_file(checkpoint.capture_state(model, {"optimizer": optimizer}), tmp_path),
    )
    assert state_of(other, fresh) == state_of(model, optimizer)
    assert other.counted is kept, "what fits is written in place: others may refer to it"
    for each, how in ((model, optimizer), (other, fresh)):
        train(each, how, 3, 5)
    assert state_of(other, fresh) == state_of(model, optimizer)
    assert other.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("named", [False, True])
def test_all_of_an_optimizers_state_is_seen(named: bool) -> None:
    """Numbers, truths, texts and what lists and dictionaries hold, in their order."""
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight])

    def seen(entry: Any) -> int:
        optimizer.state["own" if named else weight] = {"entry": entry}  # type: ignore[index]
        return of(*optimizer_tensors(optimizer))

    entries = [
        *(1, 2, 1.0, -0.0, 0.0, True, "warm", b"warm", 2**80, [1, 2], [2, 1], {"a": 3}, {"a": [4]}),
        *(torch.ones(2), [torch.zeros(2), 1], {"a": (torch.zeros(3), 1)}),
    ]
    found = [seen(entry) for entry in entries]
    assert len(set(found)) == len(entries)
    assert found == [seen(copy.deepcopy(entry)) for entry in entries]
