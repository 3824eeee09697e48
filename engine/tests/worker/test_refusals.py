"""What only the training process can know is refused in one line, which the record keeps."""

from pathlib import Path

import pytest

from seedbed import record
from seedbed.training import checkpoint
from tests import tiny
from tests.running import QUICK
from tests.worker.runs import begun, work

pytestmark = pytest.mark.usefixtures("this_process_trains")
SAMPLERS = "tests.data.test_samplers"
# The last step's loss is finite; by the learning rate its update is not.
ONE_STEP = ("trainer.max_steps=1", "optimizer=sgd", "trainer.gradient_clip_norm=null")


def ended(folder: Path, *overrides: str) -> int:
    """Train as train.py does, but in this process; return the exit status."""
    return work(begun(folder, *QUICK, *overrides))


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *overrides: str) -> str:
    """Return the one line with which the training process refused, as the record has it."""
    assert ended(folder, *overrides) == 2
    summary = record.read_summary(folder)
    assert summary["status"] == "failed"
    assert capsys.readouterr().err == f"error: {summary['error']}\n"
    return str(summary["error"])


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model._target_=torch.nn.NoSuch", "model._target_: expected a class that can be imported"),
        ("+model.colour=red", "), got an unexpected keyword argument 'colour'"),
        ("optimizer.weight_decay=-1", "optimizer: expected arguments that AdamW takes"),
        ("objective=validation_los", "objective: expected one of"),
        (
            f"+data.sampler={{_target_:{SAMPLERS}.OwnGenerator}}",
            "data.sampler: expected batches that depend on epoch, n and rng",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused(
    override: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the first step, by the classes that the settings are for, or what they make."""
    assert expected in refused(tmp_path / "run", capsys, override)
    assert "steps" not in record.read_summary(tmp_path / "run")


def test_a_stream_in_another_order_when_it_is_read_again_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rehearsal of a resume reads another batch."""
    streams = "tests.tiny.streams"
    words = [*tiny.OVERRIDES, "+data.streams=1", "data.train.samples=96"]
    assert ended(tmp_path / "pure", *words, f"data.train._target_={streams}.Features") == 0
    message = refused(tmp_path / "run", capsys, *words, f"data.train._target_={streams}.Reordered")
    assert message.startswith("data.train: expected ")


def test_weights_that_are_not_finite_are_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last step's loss is finite and its update is not: the run has not finished."""
    message = refused(tmp_path / "run", capsys, *ONE_STEP, "optimizer.lr=1e300")
    assert message.startswith("validation loss: expected a finite number, got nan in step 1 (epoch")
    assert list((tmp_path / "run" / "checkpoints").glob("*.pt")) == []


def test_weights_that_are_finite_are_kept(tmp_path: Path) -> None:
    """Twin: the same step with a smaller learning rate finishes."""
    assert ended(tmp_path / "run", *ONE_STEP) == 0
    assert checkpoint.load(tmp_path / "run" / "checkpoints" / "last.pt")["model"]
