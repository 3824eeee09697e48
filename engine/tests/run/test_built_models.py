"""How the engine prepares a model that it builds: memory, kernels, channel order,
device."""

from typing import Any

import pytest
import torch
from torch import fx, nn

from seedbed import assemble
from tests.running import typed


def built(model: dict[str, Any], device: str, **sections: Any) -> Any:
    settings = typed(model={"name": "given", **model}, **sections)
    return assemble.build_training_state(settings, torch.device(device)).model


@pytest.mark.parametrize(
    ("chosen", "symbolic"), [({}, False), ({"dynamic": None}, True)]
)
def test_compiled_kernels_do_not_depend_on_the_shapes_before(
    chosen: dict[str, Any], symbolic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resumed run may evaluate before it trains. Negative control: by default PyTorch
    keeps later sizes symbolic."""
    seen: list[bool] = []

    def look(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(any(isinstance(one, torch.SymInt) for one in inputs))
        return graph.forward

    compiled = nn.Module.compile
    monkeypatch.setattr(
        nn.Module,
        "compile",
        lambda self, **how: compiled(self, backend=look, **(how | chosen)),
    )
    linear = {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 2}
    model = built(linear, "cpu", trainer={"compile": True})
    with torch.no_grad():
        for size in (30, 10):
            model.eval()(torch.zeros(size, 4))
    model.train()(torch.zeros(16, 4))
    torch.compiler.reset()
    assert any(seen) == symbolic


def test_weights_of_four_dimensions_alone_are_brought_into_the_order_of_images() -> (
    None
):
    """On a GPU, here replaced by `meta`, also if other weights have five dimensions."""
    sgd = {"name": "sgd", "_target_": "torch.optim.SGD", "lr": 0.1}
    size = {"in_channels": 2, "out_channels": 4, "kernel_size": 3}
    layers = {
        kind: {"_target_": f"torch.nn.{kind}", **size} for kind in ("Conv2d", "Conv3d")
    }
    model = built(
        {"_target_": "torch.nn.ModuleDict", "modules": layers}, "meta", optimizer=sgd
    )
    assert model["Conv2d"].weight.stride()[1] == 1
    assert model["Conv3d"].weight.stride()[1] > 1, "negative control"
    with pytest.raises(RuntimeError, match="rank 4"):  # negative control
        model.to(memory_format=torch.channels_last)


@pytest.mark.parametrize(("name", "set_to"), [("cuda:1", ["cuda:1"]), ("cpu", [])])
def test_a_gpu_becomes_the_current_one(
    name: str, set_to: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL and code with `device="cuda"` use the current one. Negative control: the
    CPU."""
    current: list[str] = []
    monkeypatch.setattr(torch, "empty", lambda _size, device: None)
    monkeypatch.setattr(
        torch.cuda, "set_device", lambda device: current.append(str(device))
    )
    assert str(assemble.choose_device(name)) == name
    assert current == set_to
