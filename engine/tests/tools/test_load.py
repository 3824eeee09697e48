"""`seedbed.load` gives the model of a run; what is exported of it has the same bits."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import seedbed
from seedbed.errors import InputError
from tests.pages import blocks
from tests.running import ROOT, TEMPLATE
from tests.tools.conftest import contents


@pytest.fixture
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "src")  # the package tiny


def weights(run: Path, name: str) -> dict[str, torch.Tensor]:
    state = torch.load(run / "checkpoints" / f"{name}.pt", weights_only=True)
    found: dict[str, torch.Tensor] = state["model"]
    return found


@pytest.mark.usefixtures("_importable")
@pytest.mark.parametrize("name", ["best", "last"])
def test_the_weights_are_those_of_the_checkpoint(run: Path, name: str) -> None:
    """In evaluation mode; nothing is written, and no generator of the caller's is moved."""
    before = contents(run)
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    expected = torch.rand(()), random.random(), np.random.random()
    torch.manual_seed(5), random.seed(5), np.random.seed(5)
    model = seedbed.load(run, checkpoint=name)
    assert (torch.rand(()), random.random(), np.random.random()) == expected
    saved = weights(run, name)
    assert model.state_dict().keys() == saved.keys()
    for key, value in model.state_dict().items():
        assert value.numpy().tobytes() == saved[key].numpy().tobytes()
    assert not model.training
    assert contents(run) == before


@pytest.mark.usefixtures("_importable")
def test_other_checkpoints_are_other_weights(run: Path) -> None:
    """Negative control of the test above; and a checkpoint that is not there is one line."""
    best, last = (
        torch.cat([w.flatten() for w in weights(run, n).values()]) for n in ("best", "last")
    )
    assert not torch.equal(best, last)
    with pytest.raises(InputError, match=r"none\.pt: expected a checkpoint, got none"):
        seedbed.load(run, checkpoint="none")


@pytest.mark.long
def test_the_lines_of_the_page_export_the_model(run: Path, tmp_path: Path) -> None:
    """The program has the model's bits where neither Seedbed nor the model's code is."""
    [code] = blocks((TEMPLATE / "docs/runs.md").read_text(), "python")
    assert "torch.export.save" in code
    size = "torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))"
    lines = code.replace("runs/a", str(run)).replace("2, 1, 28, 28", "2, 1, 8, 8")
    lines += f"\ntorch.set_num_threads(1)\ntorch.save(model({size}), 'expected.pt')\n"
    program = f"import torch\ntorch.set_num_threads(1)\nx = {size}\n"
    program += "found = torch.export.load('a.pt2').module()(x)\n"
    program += "expected = torch.load('expected.pt')\n"
    program += "assert found.detach().numpy().tobytes() == expected.detach().numpy().tobytes()\n"
    paths = {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT / "src")])}
    for text, variables in ((lines, paths), (program, {"PYTHONPATH": ""})):
        done = subprocess.run(
            [sys.executable, "-c", text],
            cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
