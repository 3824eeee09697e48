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
from tests.made_up_runs import contents
from tests.pages import blocks
from tests.running import ROOT, TEMPLATE


def test_weights_are_the_checkpoints(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In evaluation mode; nothing is written, and no generator of the caller's is moved. Control:
    the best weights are not the last ones."""
    monkeypatch.syspath_prepend(ROOT / "src")  # the package tiny
    before, flat = contents(run), []
    for name in ("best", "last"):
        draws = []
        for loads in (False, True):
            torch.manual_seed(5), random.seed(5), np.random.seed(5)
            if loads:
                model = seedbed.load(run, checkpoint=name)
            draws.append((torch.rand(()), random.random(), np.random.random()))
        assert draws[0] == draws[1]
        saved = torch.load(run / "checkpoints" / f"{name}.pt", weights_only=True)["model"]
        assert model.state_dict().keys() == saved.keys()
        bits = [value.numpy().tobytes() for value in model.state_dict().values()]
        assert bits == [value.numpy().tobytes() for value in saved.values()]
        assert not model.training
        flat.append(bits)
    assert flat[0] != flat[1]
    assert contents(run) == before
    with pytest.raises(InputError, match=r"none\.pt: expected a checkpoint, got No such file"):
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
    program += "y, expected = torch.export.load('a.pt2').module()(x), torch.load('expected.pt')\n"
    program += "assert y.detach().numpy().tobytes() == expected.detach().numpy().tobytes()\n"
    paths = {"PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT / "src")])}
    for text, variables in ((lines, paths), (program, {"PYTHONPATH": ""})):
        words = [sys.executable, "-c", text]
        subprocess.run(words, cwd=tmp_path, env={**os.environ, **variables}, check=True)
