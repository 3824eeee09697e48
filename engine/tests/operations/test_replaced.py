"""A run of strict trains with replacements, records them, and has the same bits."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import torch_deterministic_kernels as kernels
from torch import Tensor, nn
from torch_deterministic_kernels import switch

from seedbed import record
from seedbed.determinism import backends
from seedbed.errors import InputError
from tests import tiny
from tests.running import QUICK, train, trained
from tests.ways import differences

HERE = "tests.operations.test_replaced"


class Sparse(nn.Module):
    """A model that PyTorch refuses on every device, in its forward and backward
    passes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(tiny.FEATURES, 16)
        self.last = nn.Linear(16, tiny.CLASSES)

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
    assert (
        f"deterministic replacement: max_unpool2d in model, {__file__}:{line}\n" in log
    )
    assert log.count("deterministic replacement: ") == 2


@pytest.mark.parametrize("left_out", ["put_", "max_unpool2d"])
def test_one_is_left_out(tmp_path: Path, left_out: str) -> None:
    """It is refused, as without replacements."""
    done = train(
        tmp_path / "run", *QUICK, *WORDS, f"determinism.replace_except=[{left_out}]"
    )
    assert done.returncode == 2
    refused = {"max_unpool2d": "max_unpooling2d_forward_out"}.get(left_out, left_out)
    assert (
        f"error: {refused}: expected an operation with a deterministic" in done.stderr
    )


def test_an_unknown_name() -> None:
    set_names = backends.flags()["replace_except"].set
    assert set_names is not None
    with pytest.raises(
        InputError, match=r"^determinism\.replace_except: .* such as put_, got putt"
    ):
        set_names(["putt"])
    assert backends.flags()["replace_except"].get() == []


def test_pytorchs_kernels_return() -> None:
    """Operations are refused again once the flag is off, and never named as replaced
    where they are allowed. Negative control: they are replaced, before."""
    x = torch.zeros(3)
    index = torch.tensor([1])
    flags = backends.flags()
    replace = flags["replace"]
    on_nondeterministic = flags["on_nondeterministic"]
    assert replace.set is not None
    assert on_nondeterministic.set is not None
    try:
        for mode, wanted in (("allow", True), ("error", True), ("error", False)):
            on_nondeterministic.set(mode)
            replace.set(wanted)
            assert replace.get() is wanted
            switch._callers.clear()
            with (
                nullcontext()
                if wanted
                else pytest.raises(RuntimeError, match="put_ does not")
            ):
                x.put_(index, torch.ones(1))
            is_replaced = (mode, wanted) == ("error", True)
            assert bool(kernels.replaced()) is is_replaced
    finally:
        replace.set(False)
        on_nondeterministic.set("allow")
