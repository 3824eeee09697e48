"""Methods on several processes: the bits of one process with as many shards."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seedbed import fingerprint
from seedbed.data.positions import Position
from seedbed.data.source import Batch
from seedbed.distributed.processes import Processes
from seedbed.errors import InputError
from seedbed.methods import Supervised
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


UNUSED = ["unused.weight", "unused.bias"]


class Skips(nn.Module):
    """Has weights that no sample uses, some that one slice of a batch uses, and a sparse one."""

    def __init__(self, sparse: bool = False) -> None:
        super().__init__()
        self.head, self.unused = nn.Linear(tiny.FEATURES, tiny.CLASSES), nn.Linear(2, 2)
        self.rare = nn.Parameter(torch.ones(tiny.CLASSES))
        self.table = nn.Embedding(16, tiny.CLASSES, sparse=sparse)

    def forward(self, inputs: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        outputs = self.head(inputs) + self.table(ids)
        return outputs * self.rare if 0 in ids else outputs


class Skipping(Supervised):
    """Trains it; of each slice, values go by names of their own."""

    def __init__(self, names: Sequence[str] = ("a",) * SHARDS) -> None:
        super().__init__(Classification())
        self.names = names

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        loss = nn.functional.cross_entropy(model(batch.inputs, batch.ids), batch.targets)
        slice_of_batch = int(batch.ids[0]) * SHARDS // 16
        return {"loss": loss} | dict.fromkeys(self.names[slice_of_batch], 1.0)


def skipping(
    processes: Processes | None, sparse: bool = False, names: Sequence[str] = ("a",) * SHARDS
) -> Any:
    """Take steps; return fingerprints and weights, or the line of a refusal."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, shards = Skips(sparse), SharedShards(SHARDS, lambda: False, processes)
    kind: Any = torch.optim.SGD if sparse else torch.optim.AdamW
    optimizers = {"optimizer": kind(model.parameters(), lr=0.1)}
    training = TrainingState(model, optimizers, Skipping(names), torch.device("cpu"))
    hasher = None if sparse else fingerprint.Hasher(training.device)
    found: list[Any] = []
    try:
        for step in range(1, 4):
            taken = train_step(training, batch_of(step, shards), step, shards, True, hasher)
            found.append(taken.stages.tolist() if taken.stages is not None else None)
    except InputError as error:
        return str(error)
    assert [name for name, p in model.named_parameters() if p.grad is None] == UNUSED
    return found, [parameter.tolist() for parameter in model.parameters()]


@pytest.mark.parametrize("count", [2, 4])
def test_weights_that_no_sample_uses_stay_on_any_number_of_processes(count: int) -> None:
    """Decay would move them; what one slice alone uses is updated, in all processes alike."""
    alone = skipping(None)
    assert in_processes(count, skipping) == dict.fromkeys(range(count), alone)
    torch.manual_seed(0)
    began = {name: parameter.tolist() for name, parameter in Skips().named_parameters()}
    pairs = zip(began.items(), alone[1], strict=True)
    assert [name for (name, before), after in pairs if before == after] == UNUSED


def test_sparse_gradients_are_refused_in_one_line_on_several_processes() -> None:
    """Which name the layer; one process trains with them."""
    line = (
        "model.table.weight: expected a dense gradient with several processes, got a sparse one; "
        "build the layer with sparse=False, or say trainer.processes=1"
    )
    assert in_processes(2, partial(skipping, sparse=True)) == {0: line, 1: line}
    assert not isinstance(skipping(None, sparse=True), str)


@pytest.mark.parametrize("names", ["aabb", ["a", "a", "ab", "ab"]])
def test_values_of_other_names_are_refused_whoever_has_the_slice(names: Sequence[str]) -> None:
    """Their means would be of different things; as many or more; negative control: above."""
    start = "method: expected the same names from Skipping.training_step for all shards"
    assert skipping(None, names=names).startswith(start)
    for line in in_processes(2, partial(skipping, names=names)).values():
        assert line.startswith(start), line


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
