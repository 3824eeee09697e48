"""Values that a method or a callback gives the training set and the sampler for each
epoch."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from seedbed.methods import Callback, Run, Supervised
from seedbed.pipeline.source import Batch
from tests import tiny
from tests.end_to_end.live import begin, rows, until
from tests.run.runs import SHORT
from tests.running import refusal, train
from tests.tiny.data import Noisy
from tests.ways import differences

SAMPLES = 48
STEPS_PER_EPOCH = 6
EPOCHS = 5


class Graded(Noisy):
    """Points that the difficulty of the epoch scales."""

    difficulty = 0.0

    def set_epoch_values(self, values: Mapping[str, Any]) -> None:
        self.difficulty = float(values["difficulty"])

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) * (1 + self.difficulty), target


class ByLoss:
    """Draws the samples that had a high loss more often."""

    def __init__(self) -> None:
        self.weights: Any = np.ones(SAMPLES)

    def set_epoch_values(self, values: Mapping[str, Any]) -> None:
        self.weights = values["losses"].double().numpy()

    def batches(self, epoch: int, n: int, rng: np.random.Generator) -> Any:
        chances = self.weights / self.weights.sum()
        return list(rng.choice(n, (STEPS_PER_EPOCH, n // STEPS_PER_EPOCH), p=chances))


class Net(nn.Module):
    """A linear layer, and the last loss of each training sample."""

    losses: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(tiny.FEATURES, tiny.CLASSES)
        self.register_buffer("losses", torch.ones(SAMPLES))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x)
        return outputs


class Mining(Supervised):
    """Gives what the training has left in a buffer."""

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        with torch.no_grad():
            found = cross_entropy(model(batch.inputs), batch.targets, reduction="none")
            model.losses[batch.ids] = found.float()
        return super().training_step(model, batch, optimizer)

    def epoch_values(self, model: Any, epoch: int) -> Mapping[str, Any]:
        return {
            "losses": model.losses,
            "difficulty": epoch / 10 + float(model.losses.mean()),
        }


class Growing(Supervised):
    """Gives a difficulty that follows the weights."""

    def epoch_values(self, model: Any, epoch: int) -> Mapping[str, Any]:
        return {"difficulty": epoch / 10 + float(model.head.weight.abs().mean())}


class Forgetful(Supervised):
    """Gives a difficulty that follows a counter which no checkpoint has."""

    steps = 0

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        self.steps += 1
        return super().training_step(model, batch, optimizer)

    def epoch_values(self, model: Any, epoch: int) -> Mapping[str, Any]:
        return {"difficulty": self.steps / 10}


class Reaching(Callback):
    """Sets an attribute of the data set's class, as nobody should."""

    def on_step_end(self, run: Run, step: int) -> None:
        if step >= STEPS_PER_EPOCH:
            Graded.difficulty = step / 10


WORDS = (
    *SHORT,
    *tiny.overrides(model={"name": "net", "_target_": f"{__name__}.Net"}),
    *(f"data.train._target_={__name__}.Graded", "trainer.checkpoint_every_steps=2"),
    *(
        "trainer.max_steps=null",
        f"trainer.max_epochs={EPOCHS}",
        "trainer.rehearse_resume=true",
    ),
)
MINING = (
    *WORDS,
    *tiny.replaced("method", f"{__name__}.Mining"),
    f"+data.sampler._target_={__name__}.ByLoss",
)
GROWING = (*WORDS, *tiny.replaced("method", f"{__name__}.Growing"))
FORGETFUL = (*WORDS, *tiny.replaced("method", f"{__name__}.Forgetful"))


def killed_and_resumed(folder: Path, *words: str) -> None:
    """Kill a run in two epochs; resume it each time, at last to its end."""
    process = begin("train.py", f"hydra.run.dir={folder}", *words)
    for step in (STEPS_PER_EPOCH + 4, 3 * STEPS_PER_EPOCH + 1):
        until(lambda least=step: rows(folder) >= least, process)  # type: ignore[misc]
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        process = begin("-m", "seedbed", "resume", str(folder))
    _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize(
    ("words", "others"),
    [
        (MINING, ("data.num_workers=2",)),
        pytest.param(MINING, ("data.num_workers=0",), marks=pytest.mark.long),
        pytest.param(
            GROWING,
            ("data.num_workers=1", "data.persistent_workers=false"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            (*GROWING, "trainer.shards=2"),
            ("trainer.processes=2", "data.num_workers=1"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_epoch_has_its_values_after_kills_and_with_any_loading(
    words: tuple[str, ...], others: tuple[str, ...], tmp_path: Path
) -> None:
    """Negative control: other values give other bits."""
    slow = f"data.train._target_={__name__}.Slow"
    done = train(tmp_path / "whole", *words)
    assert done.returncode == 0, done.stderr
    killed_and_resumed(tmp_path / "killed", *words, *others, slow)
    assert differences(tmp_path / "whole", tmp_path / "killed") == []
    other = train(tmp_path / "other", *words, f"data.train._target_={__name__}.Deaf")
    assert other.returncode == 0, other.stderr
    assert differences(tmp_path / "whole", tmp_path / "other") != []


class Slow(Graded):
    """Leaves a test the time to kill a run."""

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.01)
        return super().__getitem__(index)


class Deaf(Graded):
    """Takes values, and does not use them."""

    def set_epoch_values(self, values: Mapping[str, Any]) -> None:
        pass


def test_values_that_no_checkpoint_has_are_refused_before_a_run_begins(
    tmp_path: Path,
) -> None:
    """And so are values that nothing takes. Negative control: the test above."""
    line = refusal(train(tmp_path / "forgets", *FORGETFUL))
    assert line.startswith("method: resume check failed: "), line
    assert "in step 2 (epoch values)" in line
    assert "on buffers and on parameters of the model alone" in line
    line = refusal(
        train(
            tmp_path / "untaken", *GROWING, "data.train._target_=tests.tiny.data.Noisy"
        )
    )
    assert "with set_epoch_values(values)" in line


def test_an_attribute_that_changes_between_epochs_is_named(tmp_path: Path) -> None:
    """Negative control: values for epochs."""
    found = {}
    for name, words in {
        "reaching": (*WORDS, f"+callbacks.reaching._target_={__name__}.Reaching"),
        "growing": GROWING,
    }.items():
        done = train(tmp_path / name, *words)
        assert done.returncode == 0, done.stderr
        found[name] = "Graded.difficulty changed while the run trained" in done.stdout
    assert found == {"reaching": True, "growing": False}
