"""A run of strict trains with replacements, records them, and has the same bits."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torchvision.ops  # its operators
from torch import Tensor, nn

from seedbed import kernels, record
from seedbed.determinism import backends
from seedbed.errors import InputError
from seedbed.operations import explained
from tests import tiny
from tests.fault_score import flags
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
    assert f"deterministic replacement: max_unpool2d, {__file__}:{line}\n" in log
    assert log.count("deterministic replacement: ") == 2


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


def test_deformable_convolutions_are_refused() -> None:
    """Their gradients are sums in no fixed order on a GPU, which torchvision does not refuse."""
    x = torch.ones(1, 1, 4, 4, requires_grad=True)
    out = torchvision.ops.deform_conv2d(x, torch.zeros(1, 18, 2, 2), torch.ones(1, 1, 3, 3))
    with flags(replace=False):
        out.sum().backward(retain_graph=True)  # negative control
        kernels.register(["torchvision::_deform_conv2d_backward"], "CPU", everywhere=True)
        with (
            pytest.raises(InputError, match=r"^torchvision deform_conv2d backward: expected an op"),
            explained(),
        ):
            out.sum().backward()
        kernels.set_setting("replace", True)  # registers others in its place


def test_pytorchs_kernels_return() -> None:
    """Replacements that are switched off are not called. Negative control: they are, before."""
    x, index, flag = torch.zeros(3), torch.tensor([1]), backends.flags()["replace"]
    assert flag.set is not None
    for wanted in (True, False):
        flag.set(wanted)
        kernels.called.clear()
        x.put_(index, torch.ones(1))
        assert ("put_" in kernels.called) == wanted == flag.get()
