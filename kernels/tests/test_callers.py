"""`replaced` names the module and the line that called an operation first."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torch_deterministic_kernels as tdk
from tests.replacing import forget, replacing


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


def line_of(text: str) -> str:
    code = Path(__file__).read_text()
    return f"{__file__}:{1 + code[: code.index(text)].count(chr(10))}"


def callers(model: Any) -> list[str]:
    forget()
    model(torch.ones(1, 1, 4, requires_grad=True)).sum().backward()
    return [item.caller for item in tdk.replaced()]


def test_modules_of_backward_passes() -> None:
    """They are those whose forward pass recorded the operation; of PyTorch's own
    modules, the line is that of the call. Negative controls: outside of the context,
    and of any module."""
    module = nn.Upsample(scale_factor=2, mode="linear")
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(Put(), nn.ReLU()))
    with replacing("put_", "upsample_linear1d_backward"):
        tdk.locate(model)
        with tdk.locate_backward():
            found = callers(model)
        forward = line_of(
            "def forward(self, x: Tensor) -> Tensor:\n        return PutBackward"
        )
        assert found == [f"model.1.0, {forward}"]
        tdk.locate(module, name="net")
        with tdk.locate_backward():
            found = callers(module)
        own = line_of("    model(torch.ones(1, 1, 4, requires")
        assert found == [f"net, {own}"]
        assert callers(model) == ["the backward pass"]
        with tdk.locate_backward():
            assert callers(PutBackward.apply) == ["the backward pass"]


def test_code_that_inductor_writes_is_not_the_users() -> None:
    """It is a module below PyTorch's, in a temporary file."""
    code = compile(
        "def run(x, index): x.put_(index, x.clone())",
        "/tmp/torchinductor_user/cx/cx2.py",
        "exec",
    )
    written: dict[str, Any] = {"__name__": "torch._inductor.runtime.compile_tasks.cx2"}
    exec(code, written)
    forget()
    with replacing("put_"):
        written["run"](torch.zeros(2), torch.arange(2))
    [found] = tdk.replaced()
    assert found.caller == line_of('        written["run"](torch.zeros')


class Putting(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 1).put_(torch.arange(2), x.flatten()[:2])


def test_lines_of_forward_passes() -> None:
    """With the module of a located model; without frames of a package that is passed
    over."""
    model = nn.Sequential(Putting())
    line = line_of("        return (x * 1).put_(")
    with replacing("put_"):
        assert callers(model) == [line]
        tdk.locate(model)
        assert callers(model) == [f"model.0, {line}"]
        tdk.locate(model, internal=["tests"])
        [found] = callers(model)
        assert found.startswith("model.0, ")
        assert "test_callers" not in found
