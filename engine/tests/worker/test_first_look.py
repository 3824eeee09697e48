"""What would fail or pass in silence hours later is said before the first step."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seedbed import record
from seedbed.data.source import Batch
from seedbed.methods import Callback, Make, Supervised
from tests.tiny.methods import VAE
from tests.worker import runs
from tests.worker.runs import work

pytestmark = pytest.mark.usefixtures("this_process_trains")


class Broken(VAE):
    """Evaluates by code that was never run."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return {"loss": model.decode(batch.inputs)}


class LateHead(Supervised):
    """Trains a part from step 10 on, whose name is misspelt."""

    def trainable(self, step: int) -> list[str]:
        return ["*"] if step < 10 else ["*", "haed.*"]


class Partial(Supervised):
    """Gives its optimizer biases, and a part that is not there."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> torch.optim.Optimizer:
        named = dict(model.named_parameters())
        biases = [p for name, p in named.items() if name.endswith("bias")]
        head = [p for name, p in named.items() if name.startswith("fcc.")]
        return make([{"params": biases, "name": "biases"}, {"params": head, "name": "head"}])


class WholeSet(VAE):
    """Has a value that only a whole set has."""

    def compute(self, values: Mapping[str, Any]) -> Mapping[str, float]:
        assert len(values["loss"]) > 16
        return super().compute(values)


class LateHook(Callback):
    """Has a hook of another library."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise AssertionError


AUTOENCODER = {"name": "own", "_target_": "tests.tiny.methods.Autoencoder"}
OWN_MODEL = ("Broken", "WholeSet", "VAE")


def begun(folder: Path, method: str, *words: str) -> Path:
    """Make the run folder of a method of this file, or of tests.tiny."""
    module = __name__ if method in globals() and method != "VAE" else runs.METHODS
    model = AUTOENCODER if method in OWN_MODEL else None
    return runs.begun(folder, *runs.of_method(method, *words, module=module, model=model))


def refused(folder: Path, *words: str) -> int:
    """Return the exit status of a run that took no step."""
    status = work(begun(folder, *words))
    assert record.read_summary(folder).get("steps", 0) == 0
    if (folder / "metrics.csv").exists():
        assert record.read_metrics(folder) == []
    return status


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("VAE", "trainer.monitor=validation_lss", "trainer.mode=min"),
         "trainer.monitor: expected a value of VAE.validation_step, got validation_lss"),
        (("LateHead",), "method: expected patterns that parameters fit from trainable"),
        (("VAE", f"+callbacks.late._target_={__name__}.LateHook"),
         "callbacks.late: expected hooks among on_before_optimizer_step, on_step_end, "
         "on_validation_end, on_evaluation_end, got LateHook.on_validation_epoch_end, which is"),
    ],
)  # fmt: skip
def test_a_misspelt_name_is_refused_before_the_first_step(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert refused(tmp_path / "run", *words) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {line}")
    assert error.count("\n") == 1


def test_a_broken_evaluation_fails_before_the_first_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Python's traceback, from the user's line on."""
    assert refused(tmp_path / "run", "Broken", "data.num_workers=1") == 1
    error = capsys.readouterr().err
    assert "model.decode(batch.inputs)" in error
    assert "has no attribute 'decode'" in error


def test_what_is_never_trained_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And trained all the same, since it may be meant; negative control: all are."""
    assert work(begun(tmp_path / "run", "Partial")) == 0
    printed = capsys.readouterr().out
    assert "warning: optimizer: 2 of 4 parameters that need gradients are in no opt" in printed
    assert "warning: optimizer: its parameter group head is empty" in printed
    assert work(begun(tmp_path / "all", "FineTuning")) == 0
    assert "warning" not in capsys.readouterr().out


def test_values_of_a_whole_set_are_not_asked_of_one_batch(tmp_path: Path) -> None:
    words = ("data.eval_batch_size=16", "trainer.max_steps=2")
    assert work(begun(tmp_path / "run", "WholeSet", *words)) == 0
