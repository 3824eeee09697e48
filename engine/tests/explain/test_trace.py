"""Every operation of a step is noted with the bits of what goes in and what comes out."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from seedbed.explain.trace import Event, traced
from seedbed.explain.trace_compare import first_difference


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


class Biased(nn.Module):
    """Changes a bias in its forward pass, if asked to, through a view of it."""

    def __init__(self, write: Callable[[Tensor], object] | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.write = nn.Conv2d(1, 4, 3), write

    def forward(self, x: Tensor) -> Tensor:
        if self.write is not None:
            with torch.no_grad():
                self.write(self.conv.bias)  # type: ignore[arg-type]
        return self.conv(x)


def nudge(bias: Tensor) -> None:
    bias[3] = torch.nextafter(bias[3], torch.tensor(9.0))


@pytest.mark.parametrize(
    ("write", "operation"),
    [
        (nudge, "aten.nextafter"),
        (lambda bias: bias[1:].mul_(2), "aten.mul_"),
        (lambda bias: bias.data.view(2, 2)[0].fill_(7), "aten.fill_"),
        (lambda bias: bias.detach()[2:].add_(1), "aten.add_"),
    ],
)
def test_a_write_through_a_view_is_named(write: Callable[[Tensor], object], operation: str) -> None:
    """The operation that wrote is blamed, not the next one, which only read the weight."""
    traces = []
    for model in (Biased(None), Biased(write)):
        with traced(model) as events:
            model(torch.zeros(1, 1, 5, 5))  # gives the bias alone
        traces.append(events)
    found = first_difference(*traces)
    assert found is not None
    assert found.reason == "runs in B only"
    assert found.event.operation.startswith(operation)
    assert "tests/explain/test_trace.py:" in found.event.place.line
