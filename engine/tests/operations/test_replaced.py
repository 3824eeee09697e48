"""A run of strict trains with replacements, records them, and has the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torch_deterministic_kernels as kernels
import torchvision.ops  # noqa: F401  # its operators
from torch import Tensor, nn
from torch_deterministic_kernels import places

from seedbed import record
from seedbed.determinism import backends
from seedbed.errors import InputError
from tests import tiny
from tests.running import QUICK, train, trained
from tests.ways import differences

HERE = "tests.operations.test_replaced"


class Sparse(nn.Module):
    """A model that PyTorch refuses on every device, in its forward and backward passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(tiny.FEATURES, 16), nn.Linear(16, tiny.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).view(-1, 1, 4, 4)
        pooled, indices = F.max_pool2d(x, 2, return_indices=True)
        x = F.max_unpool2d(pooled, indices, 2).flatten()
        return self.last(x.put(torch.arange(4), x[:4] * 2).view(-1, 16))


WORDS = tiny.overrides({"name": "sparse", "_target_": f"{HERE}.Sparse"})


@pytest.mark.long
def test_same_bits(tmp_path: Path) -> None:
    """Twice, with workers, and resumed by the rehearsal; what was replaced is named."""
    first = trained(tmp_path / "first", *WORDS)
    again = trained(tmp_path / "again", *WORDS, "data.num_workers=2")
    assert differences(first, again) == []
    for folder in (first, again):
        found = record.read_json(folder / "environment.json")
        assert found["operations_replaced"] == ["max_unpool2d", "put_"]
        assert found["flags"]["replace"] is True
    log = (first / "train.log").read_text()
    code = Path(__file__).read_text()
    line = 1 + code[: code.index("F.max_unpool2d")].count("\n")
    assert f"deterministic replacement: max_unpool2d in model, {__file__}:{line}\n" in log
    assert log.count("deterministic replacement: ") == 2


class PutBackward(torch.autograd.Function):
    """A function whose backward pass alone is replaced on the CPU."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.clone().put_(torch.arange(2), gradient.flatten()[:2])


class Put(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return PutBackward.apply(x)


def test_modules_of_backward_passes() -> None:
    """They are those whose forward pass recorded the operation; of PyTorch's own modules, the line
    is that of the call. Negative controls: after the noted step, and outside of any module."""
    code = Path(__file__).read_text()
    module = nn.Upsample(scale_factor=2, mode="linear")
    names = ("put_", "upsample_linear1d_backward")

    def lines(model: Any) -> list[str]:
        kernels.called.clear(), kernels._printed.clear()
        model(torch.ones(1, 1, 4, requires_grad=True)).sum().backward()
        return kernels.news()

    def line_of(text: str) -> str:
        return f"{__file__}:{1 + code[: code.index(text)].count(chr(10))}"

    kernels.register([*names], "CPU", everywhere=True)
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Put(), nn.ReLU()))
        places.set_model(model)
        with places.noted():
            [found] = lines(model)
        place = line_of("def forward(self, x: Tensor) -> Tensor:\n        return PutBackward")
        assert found == f"deterministic replacement: put_ in model.1.0, {place}"
        places.set_model(module)
        with places.noted():
            [found] = lines(module)
        own = line_of("        model(torch.ones(1, 1, 4, requires")
        assert found == f"deterministic replacement: upsample_linear1d_backward in model, {own}"
        assert lines(model) == ["deterministic replacement: put_, in the backward pass"]
        with places.noted():
            assert lines(PutBackward.apply) == [
                "deterministic replacement: put_, in the backward pass"
            ]
    finally:
        kernels.set_setting("replace", True), kernels.set_setting("replace", False)


@pytest.mark.parametrize("left_out", ["put_", "max_unpool2d"])
def test_one_is_left_out(tmp_path: Path, left_out: str) -> None:
    """It is refused, as without replacements."""
    done = train(tmp_path / "run", *QUICK, *WORDS, f"determinism.replace_except=[{left_out}]")
    assert done.returncode == 2
    refused = {"max_unpool2d": "max_unpooling2d_forward_out"}.get(left_out, left_out)
    assert f"error: {refused}: expected an operation with a deterministic" in done.stderr


def test_an_unknown_name() -> None:
    set_names = backends.flags()["replace_except"].set
    assert set_names is not None
    with pytest.raises(
        InputError, match=r"^determinism\.replace_except: .* such as put_, got putt"
    ):
        set_names(["putt"])
    assert kernels.setting("replace_except") == []


def test_every_operation_exists() -> None:
    """Each name is an operator of this version of PyTorch. Negative control: another name."""
    for name in (*kernels.REPLACEMENTS, "aten::no_operation"):
        space, _, packet = f"aten::{name}".rpartition("::")
        space, packet = space.rpartition("::")[2], packet.partition(".")[0]
        assert hasattr(getattr(torch.ops, space), packet) == (packet != "no_operation"), name


def test_pytorchs_kernels_return() -> None:
    """Replacements that are switched off are not called. Negative control: they are, before."""
    x, index, flag = torch.zeros(3), torch.tensor([1]), backends.flags()["replace"]
    assert flag.set is not None
    for wanted in (True, False):
        flag.set(wanted)
        kernels.called.clear()
        x.put_(index, torch.ones(1))
        assert ("put_" in kernels.called) == wanted == flag.get()
