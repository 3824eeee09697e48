"""A run in a notebook: its weights, data and record, from any folder."""

import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import seedbed
from seedbed import record
from seedbed.errors import InputError
from tests import tiny
from tests.running import QUICK, ROOT, TEMPLATE, train

STORED = "build/stored.pt"
DATA = {
    **tiny.DATA,
    "train": {"_target_": "tests.tiny.data.Stored", "file": STORED, "start": 0},
    "validation": {"_target_": "tests.tiny.data.Stored", "file": STORED, "start": 1},
    "test": {"_target_": "tests.tiny.data.Stored", "file": STORED, "start": 2},
}
TRUST = ["tests.tiny"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a run whose samples lie in a file below the project, and are gone
    since."""
    folder = tmp_path_factory.mktemp("notebook")
    (ROOT / STORED).parent.mkdir(exist_ok=True)
    torch.save(torch.randn(90, tiny.FEATURES), ROOT / STORED)
    done = train(folder / "run", *QUICK, *tiny.overrides(tiny.DENSE, DATA))
    assert done.returncode == 0, done.stderr
    yield folder / "run"
    shutil.rmtree((ROOT / STORED).parent)


@pytest.mark.filterwarnings("error::UserWarning")
def test_weights_and_data_are_those_of_the_run_in_any_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No generator is moved. The weights do not need the data, which are moved away at
    last."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1), random.seed(1)
    before = torch.get_rng_state().tolist(), random.getstate()
    model = seedbed.load(run, trust=TRUST)
    test = seedbed.data(run, "test", trust=TRUST)
    assert (torch.get_rng_state().tolist(), random.getstate()) == before
    assert len(test) == 30
    inputs, targets = map(torch.stack, zip(*(test[i] for i in range(30)), strict=True))
    with torch.no_grad():
        accuracy = (model(inputs).argmax(1) == targets).float().mean().item()
    assert math.isclose(
        accuracy, record.read_summary(run)["metrics"]["test_accuracy"], rel_tol=1e-6
    )
    moved = shutil.move(ROOT / STORED, tmp_path / "stored.pt")
    try:
        again = seedbed.load(run, trust=TRUST)
        with pytest.raises(FileNotFoundError):  # the negative control
            seedbed.data(run, trust=TRUST)
    finally:
        shutil.move(moved, ROOT / STORED)
    pairs = zip(model.parameters(), again.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_the_project_is_that_of_the_python_that_runs(run: Path, tmp_path: Path) -> None:
    """In another folder, without a variable; one below a project has precedence. With a
    Python from elsewhere, it is that of the engine which is installed there."""
    code = "from seedbed import project; print(project.root())"
    elsewhere = f"import sys; sys.prefix = {str(tmp_path)!r}; {code}"
    variables = {
        name: value for name, value in os.environ.items() if name != "SEEDBED_PROJECT"
    }
    for folder, program, root in (
        (tmp_path, code, TEMPLATE),
        (tmp_path, elsewhere, TEMPLATE),
        (ROOT / "src", code, ROOT),
    ):
        command = [sys.executable, "-c", program]
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True
        )
        assert Path(done.stdout.strip()) == root, done.stderr


def test_a_record_is_read_as_numbers_and_as_a_frame(run: Path) -> None:
    read = seedbed.read(run)
    assert read.config.optimizer.lr == 0.006
    assert read.summary["status"] == "finished"
    assert read.environment["device"]
    assert [row.step for row in read.fingerprints] == list(range(1, 13))
    assert set(read.fingerprints[0].stages) == set(record.STAGES)
    last = read.metrics[-1]
    assert last.phase == "test"
    assert last.values["accuracy"] == read.summary["metrics"]["test_accuracy"]
    frame = read.frame()
    assert list(frame.columns[:3]) == ["step", "epoch", "phase"]
    assert len(frame) == len(read.metrics)
    assert frame["loss"].tolist() == [row.values["loss"] for row in read.metrics]


def test_other_folders_and_splits_are_named(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a run folder"):
        seedbed.read(tmp_path)
    with pytest.raises(InputError, match="split: expected a data set"):
        seedbed.data(run, "dev", trust=TRUST)
