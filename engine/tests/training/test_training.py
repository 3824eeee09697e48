"""Training steps, evaluations, progress, schedules and tasks."""

import math
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.optimizer import register_optimizer_step_post_hook

from seedbed import fingerprint, rng
from seedbed.errors import InputError, Interrupted
from seedbed.methods import Method, Supervised
from seedbed.pipeline.source import Batch
from seedbed.pipeline.tensors import tensors_of
from seedbed.record import Monitor
from seedbed.tasks import Classification, Regression
from seedbed.training import callbacks, schedules
from seedbed.training.evaluate import evaluate
from seedbed.training.optimizers import may_draw
from seedbed.training.shards import Shards
from seedbed.training.state import Progress, TrainingState
from seedbed.training.step import to_device, train_step
from tests.odd_optimizers import Langevin

SAMPLES = 24
BATCH_SIZE = 8


def training(**chosen: Any) -> TrainingState:
    """Return the training state of a small model with dropout, batch norm and fixed
    weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return TrainingState(
        model,
        {"optimizer": optimizer},
        Supervised(Classification()),
        torch.device("cpu"),
        **chosen,
    )


def batch(first: int) -> Batch:
    """Return the batch whose first sample is `first`."""
    ids = np.arange(first, first + BATCH_SIZE)
    inputs = torch.from_numpy(rng.uniform(0, ids, 4)).float()
    return Batch(torch.from_numpy(ids), inputs, torch.from_numpy(ids % 3))


def samples() -> list[Batch]:
    return [batch(first) for first in range(0, SAMPLES, BATCH_SIZE)]


class TestTrainStep:
    @pytest.mark.parametrize("channels", [1, 3])
    def test_images_and_their_features_have_the_memory_order_that_was_asked_for(
        self, channels: int
    ) -> None:
        """One channel is contiguous in both orders: the strides decide, and no value
        changes."""
        images = Batch(torch.arange(2), torch.rand(2, channels, 6, 6), torch.arange(2))
        convolution = nn.Conv2d(channels, 3, 3)
        for wanted in (False, True):
            moved = to_device(images, training(channels_last=wanted)).inputs
            assert torch.equal(moved, images.inputs)
            found = convolution(moved)
            assert found.is_contiguous(memory_format=torch.channels_last) is wanted

    @pytest.mark.parametrize(
        "kind", ["plain", "subclass", "hook", "hook of all", "own step"]
    )
    def test_what_an_optimizer_draws_depends_on_the_step_alone(self, kind: str) -> None:
        """Whatever was drawn before. Only PyTorch's own optimizers are known to draw
        nothing."""

        def weights(seed: int) -> tuple[Tensor, ...]:
            state = training()
            (optimizer,) = state.optimizers.values()
            if kind == "subclass":
                optimizer.__class__ = Langevin

            def noisy(*_: Any) -> None:
                for parameter in state.model.parameters():
                    parameter.data += torch.randn_like(parameter)

            handle = None
            if kind == "hook":
                optimizer.register_step_pre_hook(noisy)
            elif kind == "hook of all":
                handle = register_optimizer_step_post_hook(noisy)
            elif kind == "own step":
                optimizer.step = noisy  # type: ignore[method-assign]
            assert may_draw(optimizer) == (kind != "plain")
            before = state.model.register_full_backward_pre_hook(
                lambda *_: rng.seed_cpu(seed)
            )
            train_step(state, [batch(0)], 1, Shards(), False, None)
            before.remove()
            if handle is not None:
                handle.remove()
            return tuple(p.detach() for p in state.model.parameters())

        assert all(map(torch.equal, weights(1), weights(2)))

    def test_memory_begins_where_pytorch_would_have_it(self) -> None:
        """Tensors are moved to 64-byte alignment, which may affect the order of a
        kernel's sums. Negative control: NumPy's memory is not always aligned."""
        elsewhere = 0
        for offset in range(0, 16, 4):  # in numbers of 4 bytes
            odd = torch.from_numpy(np.arange(100, dtype=np.float32)[offset:][:64])
            moved = to_device(Batch(odd, odd, odd), training()).inputs
            assert moved.data_ptr() % 64 == 0
            assert torch.equal(moved, odd)
            elsewhere += odd.data_ptr() % 64 != 0
        assert elsewhere > 0

    def test_a_pass_stays_within_its_optimizer_whatever_is_frozen_at_first(
        self,
    ) -> None:
        """Frozen parameters count, so `takes_all` is the same if a run resumes after
        step 1."""
        trained = training()
        first, normal, last = (list(trained.model[at].parameters()) for at in (0, 1, 4))
        trained.optimizers = {
            "a": torch.optim.SGD(first + normal),
            "b": torch.optim.SGD(last),
        }
        trainable = {
            "trainable": lambda self, step: ["0.*", "1.*"] if step == 1 else None
        }
        trained.method = type("Thaws", (Supervised,), trainable)()
        for step in (1, 2):
            trained.updates(step)
            assert trained.takes_all == {"a": False, "b": False}


class TestEvaluate:
    def test_an_evaluation_is_the_mean_over_all_samples(self) -> None:
        """A smaller last batch counts by its samples. Negative control: the mean of
        batch means."""
        uneven = [batch(0), Batch(*(part[:3] for part in batch(8)))]
        model = training().model.eval()
        outputs = torch.cat([model(part.inputs).detach() for part in uneven])
        targets = torch.cat([part.targets for part in uneven])
        result = evaluate(training(), uneven, Shards())
        losses = F.cross_entropy(outputs, targets, reduction="none")
        assert result.values["loss"] == math.fsum(losses.tolist()) / 11
        assert (
            result.values["accuracy"]
            == float((outputs.argmax(1) == targets).sum()) / 11
        )
        assert torch.equal(result.predictions, outputs.argmax(1)[:, None])
        assert torch.equal(result.targets, targets[:, None])
        hashes = [
            fingerprint.of_tensors([part]) for part in outputs.split((BATCH_SIZE, 3))
        ]
        assert result.output_hashes.tolist() == [int(found) for found in hashes]
        by_batch = [float(part.mean()) for part in losses.split((BATCH_SIZE, 3))]
        assert result.values["loss"] != pytest.approx(sum(by_batch) / 2, rel=1e-6), (
            "negative control"
        )

    def test_a_method_may_use_its_output_buffer_again(self) -> None:
        """Values and predictions are copied before the next batch overwrites the
        buffer."""
        result = evaluate(replace(training(), method=Reuses()), samples(), Shards())
        assert result.predictions is not None
        assert result.predictions.flatten().tolist() == list(range(SAMPLES))
        assert result.values["loss"] == (SAMPLES - 1) / 2

    @pytest.mark.parametrize(
        ("targets", "first"),
        [
            (torch.tensor([[3.0, 1.0], [4.0, 1.0]]), [3.0, 4.0]),
            ({"text": ["a", "b"], "class": torch.tensor([1, 2])}, [1, 2]),
            (torch.arange(5), [None, None]),
        ],
    )
    def test_targets_may_be_of_any_kind(self, targets: Any, first: list[Any]) -> None:
        """The evaluation lists the first number of each sample's target, NaN if there
        is none."""
        of_two = Batch(torch.arange(2), torch.ones(2, 4), targets)
        found = evaluate(
            replace(training(), method=Reuses()), [of_two], Shards()
        ).targets
        assert [None if math.isnan(x) else x for x in found.flatten().tolist()] == first


class Reuses(Supervised):
    """Writes the values of all batches to one buffer and ignores the targets."""

    def __init__(self) -> None:
        super().__init__(Classification())
        self.buffer = torch.zeros(BATCH_SIZE)

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        values = self.buffer[: len(batch.ids)].copy_(batch.ids)
        return {"loss": values, "predictions": values}


class Meddling(nn.Module):
    """Puts its frozen part into training mode; may also change a buffer, or merge an
    adapter.

    Merging an adapter for an evaluation and unmerging it rounds the weights.
    """

    def __init__(self, changes: str = "") -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)).eval()
        self.head = nn.Linear(8, 3)
        self.changes = changes
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += self.changes == "buffers"
        self.frozen.train()
        return self.head(self.frozen(inputs))

    def train(self, mode: bool = True) -> "Meddling":
        if self.changes == "weights" and mode != self.training:
            self.head.weight.data += 0.1 if not mode else -0.1
        return super().train(mode)


def test_modes_are_put_back_after_an_evaluation_that_is_interrupted() -> None:
    trained = replace(training(strict=True), model=Meddling())
    with pytest.raises(Interrupted):
        evaluate(trained, samples(), Shards(asked_to_stop=lambda: True))
    assert [each.training for each in trained.model.children()] == [False, True]


@pytest.mark.parametrize(
    ("strict", "shards"),
    [(True, 1), (False, 2), (False, 1)],
    ids=["strict", "shards", "neither"],
)
@pytest.mark.parametrize("changes", ["buffers", "weights", ""])
def test_state_that_an_evaluation_changes_is_refused(
    changes: str, strict: bool, shards: int
) -> None:
    """It is refused under strict, and with shards, since each process evaluates other
    batches.

    Modes are restored in any case. Negative controls: neither strict nor shards; no
    change.
    """
    trained = replace(training(strict=strict), model=Meddling(changes))
    refused = pytest.raises(
        InputError, match=r"^model: .* changed its weights or buffers during evaluation"
    )
    with refused if changes and (strict or shards > 1) else nullcontext():
        evaluate(trained, samples(), Shards(shards))
    assert [each.training for each in trained.model.children()] == [False, True]


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda a: SimpleNamespace(logits=a), "logits"),
        (lambda a: {"logits": a, "items": 0}, "logits"),
        (lambda a: (None, a), 1),
    ],
)
def test_a_task_takes_the_part_that_is_named(wrap: Any, output: str | int) -> None:
    """The output is found by attribute, key or index; the loss is that of the plain
    output."""
    layer: Any = nn.Linear(4, 3)
    plain = Supervised(Classification())
    named = Supervised(Classification(), output)
    for step in (
        lambda m, x: m.training_step(x, batch(0), "optimizer"),
        lambda m, x: m.validation_step(x, batch(0)),
    ):
        expected = tensors_of(step(plain, layer)["loss"])
        found = tensors_of(step(named, lambda inputs: wrap(layer(inputs)))["loss"])
        assert [each.tolist() for each in found] == [each.tolist() for each in expected]


@pytest.mark.parametrize(
    ("higher", "best", "without_gain"),
    [(True, [1, 3], [1, 0, 1, 0, 1, 2, 3]), (False, [1, 4], [1, 0, 1, 2, 0, 1, 2])],
)
def test_better_is_what_the_task_says(
    higher: bool, best: list[int], without_gain: list[int]
) -> None:
    """An equal metric is no gain; a gain resets the count; what is not finite is never
    a gain."""
    progress = Progress()
    found = []
    waited = []
    infinite = math.inf if higher else -math.inf
    for step, metric in enumerate([math.nan, 0.5, 0.5, 0.7, 0.3, math.nan, infinite]):
        progress.step = step
        if progress.note_validation(metric, Monitor("f1", higher)):
            found.append(step)
        waited.append(progress.validations_without_gain)
    assert (found, waited, progress.best_step) == (best, without_gain, best[-1])


def test_a_schedule_has_the_ends_and_the_peak_that_are_named() -> None:
    """1/25 of the peak at first, the peak after the warm-up, the final fraction in the
    end."""
    assert [schedules.factor(0, 1, warmup, 0.0) for warmup in (0, 1)] == [1, 1 / 25]
    # constant
    assert {schedules.factor(step, 50, 0.0, 1.0) for step in range(50)} == {1.0}
    factors = [schedules.factor(step, 101, 101 / 4, 0.001) for step in range(101)]
    assert (factors[0], factors[-1]) == (1 / 25, pytest.approx(0.001))
    assert max(factors) == pytest.approx(1, abs=1e-3)
    assert abs(factors.index(max(factors)) - 25) <= 1


def test_a_cosine_to_zero_has_the_rates_of_torch() -> None:
    """No step trains with a rate of 0. Negative control: another length has other
    rates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    scheduler = CosineAnnealingLR(optimizer, T_max=20)
    rates = []
    for _ in range(20):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    spec = {"name": "cosine", "warmup_fraction": 0.0, "final_fraction": 0.0}
    found, other = (
        list(map(schedules.of_settings(spec, n, 4), range(20))) for n in (20, 21)
    )
    assert found == pytest.approx(rates, rel=1e-9) != other
    assert min(found) > 0


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({}, 25),
        ({"warmup_steps": 10}, 10),
        ({"warmup_steps": 0}, 0),
        ({"warmup_epochs": 3}, 12),
        ({"warmup_epochs": 0.5, "warmup_steps": None}, 2),
    ],
)
def test_the_warmup_ends_after_the_steps_or_epochs_that_are_named(
    keys: dict[str, Any], steps: int
) -> None:
    """Epochs have 4 steps; the peak is reached in the step after the warm-up."""
    spec = {"name": "constant", "warmup_fraction": 0.25, "final_fraction": 1.0, **keys}
    factors = list(map(schedules.of_settings(spec, 100, 4), range(100)))
    assert factors.index(1.0) == steps
    assert set(factors[steps:]) == {1.0}


def by_epoch(step: int, total_steps: int, steps_per_epoch: int, decay: float) -> float:
    return float(decay ** (step // steps_per_epoch))


def test_a_schedule_of_ones_own_gets_the_steps_of_an_epoch() -> None:
    spec = {"name": "own", "_target_": f"{__name__}.by_epoch", "decay": 0.5}
    found = list(map(schedules.of_settings(spec, 9, 4), range(9)))
    assert found == [1.0] * 4 + [0.5] * 4 + [0.25]


@pytest.mark.parametrize("name", ["phase", "top1,top5", "a\nb", ""])
def test_a_value_has_a_name_that_can_be_a_column_of_its_own(name: str) -> None:
    """Other names are refused. Negative control: a name with a space is accepted."""
    with pytest.raises(
        InputError, match="method: expected names other than step, epoch"
    ):
        callbacks.scalar(name, 1.0)
    assert callbacks.scalar("top 1", 1.0) == 1


class TestTasks:
    def test_regression_takes_a_number_for_each_sample(self) -> None:
        """Shapes (B,) and (B, 1) are accepted but not mixed: broadcasting would compare
        every sample with every other."""
        outputs = torch.tensor([1.0, 2.0, 3.0])
        targets = torch.tensor([1.0, 0.0, 0.0])
        for shape in ((3,), (3, 1)):
            a = outputs.view(shape)
            b = targets.view(shape)
            assert Regression().losses(a, b).tolist() == [0, 4, 9]
            assert Regression().predictions(a).flatten().tolist() == [1, 2, 3]
        for compute in (Regression().loss, Regression().losses, Regression().metric):
            with pytest.raises(InputError, match=r"shape \(3, 1\), got \(3,\)"):
                compute(outputs.view(3, 1), targets)

    def test_the_metric_of_soft_targets_is_that_of_the_likeliest_class(self) -> None:
        """Hard targets have the same metric; as many classes as samples are not
        broadcast."""
        soft = torch.tensor([[0.6, 0.4, 0], [0.7, 0.3, 0], [0, 0.1, 0.9]])
        for targets in (soft, soft.argmax(1)):
            assert Classification().metric(torch.eye(3), targets).tolist() == [1, 0, 1]
        assert Classification().loss(torch.eye(3), soft).isfinite()

    @given(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30),
        st.randoms(),
    )
    def test_a_mean_does_not_depend_on_order(
        self, values: list[float], shuffled: random.Random
    ) -> None:
        """The mean has the same bits in any order. Negative control: a sum of
        floats."""
        assert sum([1e30, -1e30, 1.0]) != sum([-1e30, 1.0, 1e30]), (
            "negative control: floats round"
        )
        expected = Method().compute({"loss": torch.tensor(values)})
        shuffled.shuffle(values)
        assert Method().compute({"loss": torch.tensor(values)}) == expected
