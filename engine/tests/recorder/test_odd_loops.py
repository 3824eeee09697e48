"""Loops as people write them: forks, odd settings, several values, code reached by a link."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seedbed import compare, record
from seedbed.errors import InputError
from seedbed.recorder import Recorder

LOOP = """
import sys
import helper
import seedbed
import torch

with seedbed.Recorder(sys.argv[1], {"lr": 1.0}) as recorder:
    recorder.step(1, None, None, helper.LOSS, torch.nn.Identity(), None)
"""


def step(recorder: Recorder, number: int, losses: Any = 1.0, model: Any = None) -> None:
    recorder.step(number, None, None, losses, model or nn.Linear(1, 1), None)


def test_named_losses_and_further_metrics_are_columns(tmp_path: Path) -> None:
    """Also after a resume; the metric whose best is kept is the first that was given."""
    with Recorder(tmp_path / "a", write_every_steps=1) as recorder:
        step(recorder, 1, {"critic": torch.tensor(1.5), "no, name": 1.0})
        recorder.validation(1, accuracy=0.75, f1=0.25)
        step(recorder, 2, {"critic": torch.tensor(9.0)})
    with Recorder(tmp_path / "a", resume_from=1) as recorder:
        step(recorder, 2, {"critic": torch.tensor(2.5), "loss": 2.0})
        recorder.validation(2, f1=0.5, accuracy=0.5)
    found = [record.tables.values_of(row) for row in record.read_metrics(tmp_path / "a")]
    assert found == [
        {"loss": "2.5", "critic": "1.5", "no__name": "1.0"},
        {"accuracy": "0.75", "f1": "0.25"},
        {"loss": "2.0", "critic": "2.5"},
        {"accuracy": "0.5", "f1": "0.5"},
    ]
    summary = record.read_summary(tmp_path / "a")
    assert summary["metric_name"] == "accuracy"
    assert summary["metrics"]["best_validation_accuracy"] == 0.75


def test_compare_names_the_file_that_the_loop_imported(tmp_path: Path) -> None:
    """And not another that changed; also where the script is named by a link."""
    code, link = tmp_path / "code", tmp_path / "link"
    code.mkdir()
    link.symlink_to(code)
    (code / "loop.py").write_text(LOOP)
    for name, loss, place in (("a", 1.0, code), ("b", 2.0, link)):
        for file in ("helper.py", "unused.py"):
            (code / file).write_text(f"LOSS = {loss}\n")
        words = [sys.executable, str(place / "loop.py"), str(tmp_path / name)]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
    a, b = (compare.read(tmp_path / name) for name in "ab")
    own = {Path(name).name for name in b.origin.imported if "/seedbed/" not in name}
    assert own == {"helper.py", "loop.py"}
    assert compare.compare(a, b).difference is not None
    changed = [each.key for each in record.changes(a.origin, b.origin) if each.alters_bits]
    assert [Path(key).name for key in changed] == ["helper.py"]


def test_nothing_is_recorded_after_close(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    step(recorder, 1)
    recorder.close()
    recorder.close()
    for late in (lambda: step(recorder, 2), lambda: recorder.validation(1, 0.5)):
        with pytest.raises(InputError, match="close"):
            late()
