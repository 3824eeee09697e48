"""A finished run goes on with more epochs, to the bits of one that had them from the start."""

import shutil
from pathlib import Path

import pytest

from seedbed import record
from tests.made_up_runs import contents
from tests.running import command, refusal, train
from tests.ways import differences
from tests.worker.runs import LSTM

# 4 steps an epoch; the last step, the twelfth, is logged and hashed only because it is the last.
SHORT = (*LSTM, "trainer.max_steps=null", "trainer.log_every_steps=5", "fingerprint.every_steps=5")


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longer") / "short"
    assert train(folder, *SHORT, "schedule=constant", "trainer.max_epochs=3").returncode == 0
    return folder


def test_a_longer_run_has_the_bits_of_one_from_the_start(short: Path, tmp_path: Path) -> None:
    """Tables, weights, best weights and summary; negative control: the short run differs."""
    folder, whole = Path(shutil.copytree(short, tmp_path / "run")), tmp_path / "whole"
    words = ("schedule=constant", "trainer.early_stopping_patience=null")
    assert train(whole, *SHORT, *words, "trainer.max_epochs=5").returncode == 0
    assert differences(whole, folder)
    done = command("scripts/resume.py", str(folder), "trainer.max_epochs=5")
    assert (done.returncode, done.stderr) == (0, "")
    assert differences(whole, folder) == []
    assert record.altered(record.read_summary(folder)) == []
    assert command("scripts/verify.py", str(folder)).returncode == 0


def test_what_cannot_go_on_is_refused_in_one_line(short: Path, tmp_path: Path) -> None:
    """A schedule that the length stretches, a validation that a longer run has not, no more steps;
    the record stays as it was."""
    stretched, odd = tmp_path / "stretched", tmp_path / "odd"
    assert train(stretched, *SHORT, "trainer.max_epochs=1").returncode == 0
    words = ("schedule=constant", "trainer.max_steps=2", "trainer.max_epochs=1")
    assert train(odd, *SHORT, *words).returncode == 0
    for folder, override, reason in (
        (stretched, "trainer.max_epochs=2", "on which its learning rates depend"),
        (odd, "trainer.max_steps=4", "a longer one has as well"),
        (short, "trainer.max_epochs=3", "expected a run of more than 12 steps"),
        (short, "data.num_workers=1", "one that finished"),
    ):
        before = contents(folder)
        line = refusal(command("scripts/resume.py", str(folder), override))
        assert reason in line, line
        assert contents(folder) == before
