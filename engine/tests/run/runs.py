"""Runs in the process of a test: started as by train.py, stopped at a check,
resumed."""

import tempfile
from pathlib import Path
from typing import Any

import pytest

from seedbed import config, launch, record, signals
from seedbed.run import process
from seedbed.run.job import Job
from tests import tiny
from tests.running import composed
from tests.ways import differences

SHORT = (
    *("seed=0", "determinism=strict", "determinism.threads=1", "trainer.max_steps=14"),
    *("trainer.log_every_steps=1", "trainer.checkpoint_every_steps=3"),
    "trainer.rehearse_resume=false",  # tests.run.test_rehearsal rehearses
)
# An LSTM that trains in tenths of a second: 4 steps per epoch, a validation after each.
LSTM = (
    *("experiment=adding_lstm", *SHORT, "data.length=6", "data.batch_size=16"),
    *("data.train.samples=64", "data.validation.samples=40", "data.test.samples=40"),
    *("data.eval_batch_size=20", "model.hidden_size=4"),
)
# Its best weights, of step 12, are not its last ones, of step 20.
EARLY_STOPPING = (
    "optimizer.lr=0.3",
    "schedule=constant",
    "trainer.max_steps=24",
    "trainer.early_stopping_patience=2",
)
METHODS = "tests.tiny.methods"
_PLACE = tempfile.TemporaryDirectory(prefix="seedbed-")  # for runs that tests share
_WHOLE: dict[tuple[str, ...], Path] = {}  # not a `cache`: a rehearsal clears those
_NETS = {"VAE": "Autoencoder", "WassersteinGAN": "Players", "Teacher": "Averaged"}


class StopAt(signals.Stop):
    """Asks a run to stop at its check number `check`, counted from 1; None: never."""

    def __init__(self, check: int | None = None) -> None:
        self.signal = self._status = None
        self._check = check
        self.checks = 0

    def requested(self) -> bool:
        self.checks += 1
        if self.checks == self._check:
            self.signal = 15
        return self.signal is not None


def begun(folder: Path, *words: str) -> Path:
    """Create the run folder of a command line, as train.py does."""
    launch.create_run_folder(folder, config.check(config.resolve(composed(*words))))
    return folder


def of_method(
    method: str,
    *overrides: str,
    module: str = METHODS,
    model: dict[str, Any] | None = None,
) -> tuple[str, ...]:
    """Return a command line that trains with a method, of tests.tiny or of another
    module."""
    target = f"{METHODS}.{_NETS[method]}" if method in _NETS else None
    model = model or ({"name": "own", "_target_": target} if target else tiny.DENSE)
    chosen = tiny.replaced("method", f"{module}.{method}")
    return (*SHORT, *tiny.overrides(model), *chosen, *overrides)


def work(folder: Path, stop: StopAt | None = None, **request: Any) -> int:
    """Do a training process's work, from the beginning or a checkpoint; return its
    status."""
    asked = config.Request(**request)
    settings = config.check(asked.applied_to(record.read_config(folder)))
    return process.lead(Job(folder, settings, asked, stop or StopAt()))


def trained(folder: Path, *words: str) -> Path:
    assert work(begun(folder, *words)) == 0
    return folder


def whole(*words: str) -> Path:
    """Return the uninterrupted run of a command line, trained once per test process."""
    if words not in _WHOLE:
        _WHOLE[words] = trained(Path(tempfile.mkdtemp(dir=_PLACE.name), "run"), *words)
    return _WHOLE[words]


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Train a run that must be refused; return its one-line error, as printed and
    recorded."""
    assert work(begun(folder, *words)) == 2
    summary = record.read_summary(folder)
    assert summary["status"] == "failed"
    err = capsys.readouterr().err
    assert err == f"error: {summary['error']}\n", err
    return str(summary["error"])


def resumed(folder: Path, whole: Path, check: int, *words: str) -> None:
    """Stop a run at a check, resume it, and require the bits of the uninterrupted
    run."""
    assert work(begun(folder, *words), StopAt(check)) == 143
    assert record.read_summary(folder)["status"] == "interrupted"
    assert work(folder) == 0
    assert differences(whole, folder) == [], f"stopped at check {check}"
