"""What is restored is what was captured: values, dtypes, memory order and Python types."""

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seedbed.training import checkpoint, optimizers
from seedbed.training.optimizers import optimizer_tensors
from tests.odd_optimizers import AllKinds
from tests.test_fingerprint import of
from tests.training.cases import CLASSES, FEATURES, Case
from tests.training.test_rehearsal import STEPS, run

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
                yield pytest.param(partial(each, **options), id=f"{name} {flag}".strip())


class Matrices(nn.Module):
    """Two matrices; one lies in memory column by column."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 5, bias=False, dtype=dtype)
        self.last = nn.Linear(5, CLASSES, bias=False, dtype=dtype)
        self.first.weight.data = self.first.weight.data.t().contiguous().t()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first(x.to(self.last.weight.dtype)).tanh()).float()


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


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("build", [*usable(), AllKinds])
def test_every_optimizer_goes_on_as_if_never_stopped(build: Build, dtype: torch.dtype) -> None:
    """PyTorch's in every variant; others with master weights, counts, nested state, names."""
    case = Case(model=partial(Matrices, dtype), optimizer=build)
    whole = run(case)
    resumed = run(case, saved=whole.saved[3])
    assert whole.line == resumed.line == ""
    assert len(resumed.rows) > STEPS - 3
    assert resumed.rows.items() <= whole.rows.items()
    ends = [facts(checkpoint.decode(found.saved[STEPS])) for found in (whole, resumed)]
    assert ends[0] == ends[1] != facts(checkpoint.decode(whole.saved[3]))


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
