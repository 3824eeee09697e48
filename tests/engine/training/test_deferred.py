"""The compiler is imported by those who compile, and then it is as if it had always been there."""

import json
from pathlib import Path
from typing import Any

import pytest

from seedbed import determinism
from tests.running import QUICK, command

IMPORTS = {"PYTHONPROFILEIMPORTTIME": "1"}
COMPILES_LATER = """
import contextlib, json, sys, torch
from seedbed import deferred

without = deferred.without_compiler if sys.argv[1] == "deferred" else contextlib.nullcontext
with without():
    optimizer = torch.optim.SGD([torch.zeros(3, requires_grad=True)], lr=1.0)
    optimizer.zero_grad()
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
found = {"imported for optimizers": "torch._dynamo" in sys.modules}

def outside(x):
    return x.tan()

with without():
    if sys.argv[2] == "needed meanwhile":
        outside = torch.compiler.disable(outside)
    optimizer.step()

def inside(x):
    y = outside(x.cos()) * 3
    torch._dynamo.graph_break()
    optimizer.zero_grad()
    return y.exp()

import torch._dynamo.config
from torch._dynamo.testing import CompileCounter
graphs = CompileCounter()
torch.compile(inside, backend=graphs)(torch.ones(3))
with without():
    optimizer.zero_grad()
    optimizer.step()
disabled = torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable
found["zero_grad is disabled"] = getattr(disabled, "_torchdynamo_disable", False)
found["graphs"] = graphs.frame_count
found["one module"] = torch._dynamo.config is torch._dynamo.convert_frame.config
found["its own name"] = torch._dynamo.__spec__.name
print(json.dumps(found))
"""


def is_imported(stderr: str) -> bool:
    names = {line.rpartition("|")[2].strip() for line in stderr.splitlines()}
    assert "torch" in names
    return "torch._dynamo" in names


@pytest.mark.parametrize("preset", ["strict", "fast"])
def test_a_run_that_compiles_nothing_does_not_import_the_compiler(
    preset: str, tmp_path: Path
) -> None:
    """From the model to the checkpoint and the picture, no part of PyTorch asks for it."""
    words = (*QUICK, f"determinism={preset}", f"hydra.run.dir={tmp_path / 'run'}")
    done = command("train.py", *words, environment=IMPORTS)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not is_imported(done.stderr)


def test_an_optimizer_imports_the_compiler() -> None:
    """Twin: it does so by itself, and so does `use_deterministic_algorithms`."""
    for statement in (
        "torch.optim.SGD([torch.zeros(1, requires_grad=True)])",
        "torch.use_deterministic_algorithms(True)",
    ):
        done = command("-c", f"import torch; {statement}", environment=IMPORTS)
        assert is_imported(done.stderr)


@pytest.mark.parametrize("when", ["needed later", "needed meanwhile"])
def test_what_is_compiled_later_is_compiled_as_ever(when: str, tmp_path: Path) -> None:
    """Optimizers that did without the compiler leave nothing behind, when they meet it, too."""
    script = tmp_path / "compiles.py"
    script.write_text(COMPILES_LATER)

    def found(how: str) -> dict[str, Any]:
        done = command(str(script), how, when)
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    later, at_once = found("deferred"), found("at once")
    assert later == at_once | {"imported for optimizers": False}
    assert at_once["imported for optimizers"], "negative control"
    assert at_once["graphs"] == (3 if when == "needed meanwhile" else 2), "it parts the graphs"
    assert at_once["one module"]
    assert at_once["zero_grad is disabled"]


@pytest.mark.parametrize("asked", [True, False])
def test_the_compiler_is_imported_as_the_preset_says(asked: bool) -> None:
    """A flag for a module that is not imported yet holds when it is."""
    program = (
        "import sys; from seedbed import determinism\n"
        f"determinism.apply({{'inductor_deterministic': {asked}}})\n"
        f"assert determinism.in_force()['inductor_deterministic'] is {asked}\n"
        "assert 'torch._inductor.config' not in sys.modules\n"
        "import torch._inductor.config\n"
        "print(torch._inductor.config.deterministic)\n"
        f"determinism.apply({{'inductor_deterministic': {not asked}}})\n"
        f"assert torch._inductor.config.deterministic is {not asked}\n"
    )
    otherwise = {determinism.INDUCTOR_VARIABLE: str(int(not asked))}
    done = command("-c", program, environment=otherwise)
    assert done.stdout == f"{asked}\n", done.stderr
