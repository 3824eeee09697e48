"""Methods on several processes: the bits of one process with as many shards."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from seedbed import fingerprint
from seedbed.data.positions import Position
from seedbed.data.source import Batch
from seedbed.distributed.processes import Processes
from seedbed.errors import InputError
from seedbed.tasks import Classification
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import SharedShards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from tests import tiny
from tests.distributed.test_distributed import in_processes
from tests.tiny import methods, models

SHARDS = 4
MODELS = {"VAE": methods.Autoencoder, "WassersteinGAN": methods.Players,
          "Teacher": methods.Averaged, "LogsParameters": methods.Scaled,
          "WeighsByBuffer": methods.Scaled}  # fmt: skip


def batch_of(step: int, shards: SharedShards) -> list[Batch]:
    """Return the slices of a step's batch that are ours."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(16, tiny.FEATURES, generator=generator)
    targets = torch.randint(tiny.CLASSES, (16,), generator=generator)
    positions = shards.divide(iter([Position(0, np.arange(16))]))
    return [Batch(torch.from_numpy(ids), inputs[ids], targets[ids]) for _, ids, _ in positions]


def training_of(name: str) -> TrainingState:
    """Return what a method trains, always the same."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: Any = MODELS.get(name, partial(models.Dense, tiny.FEATURES, 3, 16, 0.1))()
    method = getattr(methods, name)()
    method.task = Classification()

    def make(parameters: Any, lr: float = 0.01, **options: Any) -> torch.optim.Optimizer:
        named = [each if isinstance(each, dict) else each[1] for each in parameters]
        return torch.optim.AdamW([p for p in named if isinstance(p, dict) or p.requires_grad],
                                 lr=lr, **options)  # fmt: skip

    found = method.configure_optimizers(model, make)
    optimizers = found if isinstance(found, dict) else {"optimizer": found}
    return TrainingState(model, optimizers, method, torch.device("cpu"), gradient_clip_norm=1.0)


def rows(processes: Processes | None, name: str) -> list[Any]:
    """Train for six steps, then evaluate; return fingerprints, losses and values."""
    shards, training = SharedShards(SHARDS, lambda: False, processes), training_of(name)
    hasher = fingerprint.Hasher(training.device)
    found: list[Any] = []
    shards.begin(training, 0)
    for step in range(1, 7):
        taken = train_step(training, batch_of(step, shards), step, shards, True, hasher)
        assert taken.values is not None
        assert taken.stages is not None
        values = {key: value.item() for key, value in taken.values.items()}
        found.append((taken.loss.item(), values, taken.stages.tolist()))
    shards.compare(training, 6)
    return [*found, evaluate(training, batch_of(9, shards), shards).values]


@pytest.mark.parametrize("name", ["VAE", "WassersteinGAN", "Teacher", "FineTuning", "Tokens"])
def test_a_method_does_not_depend_on_the_number_of_processes(name: str) -> None:
    alone = rows(None, name)
    assert in_processes(2, partial(rows, name=name)) == dict.fromkeys(range(2), alone)
    assert len({str(row) for row in alone}) == 7, "negative control: steps differ"


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", ["LogsParameters", "WeighsByBuffer"])
def test_parameters_and_buffers_that_are_logged_stay_as_they_are(name: str, count: int) -> None:
    """With one shard for each process (4), what it returns is what travels."""
    alone = rows(None, name)
    assert in_processes(count, partial(rows, name=name)) == dict.fromkeys(range(count), alone)


def with_closure(processes: Processes) -> str:
    training = training_of("VAE")
    optimizer = torch.optim.LBFGS(training.model.parameters())
    training = TrainingState(
        training.model, {"optimizer": optimizer}, training.method, training.device
    )
    try:
        SharedShards(SHARDS, lambda: False, processes).begin(training, 0)
    except InputError as error:
        return str(error)
    return "accepted"


def test_a_closure_is_refused_on_several_processes() -> None:
    """Which would have to agree on how often it is called."""
    line = (
        "optimizer: expected one whose step() needs no closure with several processes, got "
        "LBFGS; use trainer.processes=1"
    )
    assert in_processes(2, with_closure) == {0: line, 1: line}
