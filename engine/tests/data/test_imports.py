"""Loader workers that import project code anew: an edit is noticed before a sample is
used."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from seedbed import record
from seedbed.environment import Imports
from seedbed.errors import InputError
from seedbed.pipeline import imports
from seedbed.pipeline.positions import Shuffled, positions
from seedbed.pipeline.source import Source
from seedbed.pipeline.workers import Loading, load
from tests import tiny
from tests.data.loading import PRESET
from tests.running import command, refusal, train

SET = """
import torch

class Ones(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        import lazily  # not before a sample is loaded
        return lazily.scaled(torch.ones(8) * 1.0), index % 3
"""
LAZILY = "def scaled(x):\n    return 3 * x\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on sys.path with two modules, whose imports are seeded."""
    (tmp_path / "ones.py").write_text(SET)
    (tmp_path / "lazily.py").write_text(LAZILY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setattr(imports, "executed", {})
    monkeypatch.setattr(imports, "of_workers", set())
    for name in ("ones", "lazily"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    imports.seed_imports(0)
    return tmp_path


def epoch(module: ModuleType, method: str) -> list[Any]:
    """Load an epoch by new workers."""
    places = positions(Shuffled(8, 4, 0), 0, 2)
    how = Loading(1, persistent_workers=False, start_method=method)
    return [
        batch.inputs.sum().item()
        for batch in load(module_source(module), places, how, PRESET)
    ]


def module_source(module: ModuleType) -> Source:
    return Source(module.Ones(8), "train", 0)


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_worker_that_imports_an_edited_module_is_refused(
    method: str, project: Path
) -> None:
    """Its batch is not used. Negative control: before the edit, and after it is
    undone."""
    module = importlib.import_module("ones")
    assert epoch(module, method) == [96.0, 96.0]
    edit(project / "ones.py", "* 1.0", "* 1.5")
    with pytest.raises(
        InputError, match=r"ones\.py: expected the file that the run began with"
    ):
        epoch(module, method)
    edit(project / "ones.py", "* 1.5", "* 1.0")
    assert epoch(module, method) == [96.0, 96.0]


def test_a_module_that_only_workers_import_is_recorded(project: Path) -> None:
    """All workers, and this process, must import the same. Negative control: not
    edited."""
    module = importlib.import_module("ones")
    assert epoch(module, "fork") == [96.0, 96.0]
    assert "lazily" not in sys.modules
    found: dict[str, Any] = {}
    assert Imports(project, found, project).scan()
    assert {"ones.py", "lazily.py"} <= found["imported_files"].keys()
    assert epoch(module, "fork") == [96.0, 96.0]
    edit(project / "lazily.py", "3 *", "5 * ")
    with pytest.raises(InputError, match=r"lazily\.py: expected the file"):
        epoch(module, "fork")
    with pytest.raises(InputError, match=r"lazily\.py: expected the file"):
        importlib.import_module("lazily")


EDITOR = """
from pathlib import Path
from seedbed.methods import Callback

class Editor(Callback):
    def on_step_end(self, run, step):
        if step == 3:  # not in the rehearsal
            with Path(__file__).with_name("ones.py").open("a") as file:
                file.write("X = 1\\n")
"""


@pytest.mark.long
def test_a_run_whose_code_is_edited_ends_and_can_be_resumed(tmp_path: Path) -> None:
    """Spawned workers of the next epoch import the edited file. Once the edit is
    undone, the run is resumed; until then, it is refused. Negative control: a run
    without loader workers."""
    (tmp_path / "ones.py").write_text(SET)
    (tmp_path / "lazily.py").write_text(LAZILY)
    (tmp_path / "editor.py").write_text(EDITOR)
    variables = {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"}
    words = (
        *(*tiny.OVERRIDES, "determinism.threads=1", "trainer.max_epochs=4"),
        *("data.train._target_=ones.Ones", "data.train.samples=16"),
        *("trainer.checkpoint_every_steps=1", "data.persistent_workers=false"),
    )
    spawned = ("data.num_workers=1", "data.start_method=spawn")
    whole = train(tmp_path / "whole", *words, environment=variables)
    assert whole.returncode == 0, whole.stderr
    run = tmp_path / "run"
    editor = "+callbacks={editor: {_target_: editor.Editor}}"
    line = f"error: {tmp_path / 'ones.py'}: expected the file that the run began with"
    done = train(run, *words, *spawned, editor, environment=variables)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith(line)
    refused = command("scripts/resume.py", str(run), environment=variables)
    assert "elsewhere/ones.py" in refusal(refused)
    (tmp_path / "ones.py").write_text(SET)
    resumed = command("scripts/resume.py", str(run), environment=variables)
    assert resumed.returncode == 0, resumed.stderr
    assert record.read_fingerprints(run) == record.read_fingerprints(tmp_path / "whole")
