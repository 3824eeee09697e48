"""Steps, evaluations and the loop around them; learning rates; tasks."""

import copy
import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from seedbed import fingerprint, rng, tasks
from seedbed.data.source import Batch
from seedbed.data.tensors import tensors_of
from seedbed.errors import InputError, Interrupted
from seedbed.methods import Supervised
from seedbed.names import STAGES
from seedbed.tasks import Classification, Regression
from seedbed.training import loop, schedules
from seedbed.training.evaluate import evaluate, measure
from seedbed.training.loop import Logger
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Plan, Progress, TrainingState
from seedbed.training.step import to_device, train_step
from tests.tiny import methods

STEPS, SAMPLES, BATCH_SIZE = 9, 24, 8  # three epochs


def training(**chosen: Any) -> TrainingState:
    """Return a small model with dropout and batch normalisation, always with the same weights."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return TrainingState(
        model, {"optimizer": optimizer}, Supervised(Classification()), torch.device("cpu"), **chosen
    )


def batch(first: int) -> Batch:
    """Return the batch that starts with a sample."""
    ids = np.arange(first, first + BATCH_SIZE)
    inputs = torch.from_numpy(rng.uniform(0, ids, 4)).float()
    return Batch(torch.from_numpy(ids), inputs, torch.from_numpy(ids % 3))


def batches() -> Iterator[Batch]:
    return (batch(step * BATCH_SIZE % SAMPLES) for step in range(STEPS))


def samples() -> list[Batch]:
    """Return the batches of an evaluation."""
    return [batch(first) for first in range(0, SAMPLES, BATCH_SIZE)]


def bits(model: nn.Module) -> list[bytes]:
    return [tensor.numpy().tobytes() for tensor in model.state_dict().values()]


def take_step(
    trained: TrainingState, step: int = 1, with_metric: bool = True, with_stages: bool = True
) -> tuple[Any, ...]:
    hasher = fingerprint.Hasher(trained.device) if with_stages else None
    return train_step(trained, [batch(0)], step, Shards(), with_metric, hasher)


class TestTrainStep:
    def test_a_step_is_the_textbook_step(self) -> None:
        """Loss, backward pass, clipping and update, to the bit; another clipping differs."""
        ours, theirs = training(gradient_clip_norm=0.05, dropout_seed=3), training()
        loss, values, _ = take_step(ours)

        rng.seed_globals(rng.key(3, "dropout", 1, 0))
        _, inputs, targets = batch(0)
        outputs = theirs.model(inputs)
        expected = F.cross_entropy(outputs, targets)
        expected.backward()
        nn.utils.clip_grad_norm_(theirs.model.parameters(), 0.05)
        theirs.optimizers["optimizer"].step()

        assert torch.equal(loss, expected)
        assert float(values["accuracy"]) == float((outputs.argmax(1) == targets).float().mean())
        assert bits(ours.model) == bits(theirs.model)
        control = training(gradient_clip_norm=None, dropout_seed=3)
        take_step(control)
        gradients = [p.grad for p in ours.model.parameters()]
        assert nn.utils.get_total_norm(gradients) <= 0.0501
        assert nn.utils.get_total_norm([p.grad for p in control.model.parameters()]) > 0.0501

    def test_dropout_belongs_to_the_step(self) -> None:
        """What was drawn before changes nothing; another step or seed, or none, drops others."""

        def loss(step: int, **chosen: Any) -> float:
            torch.rand(random.randrange(1, 99))
            return float(take_step(training(**chosen), step)[0])

        assert loss(1) == loss(1)
        assert loss(1) != loss(2)
        assert loss(1) != loss(1, dropout_seed=1)
        unseeded = [training(dropout_seed=None) for _ in range(2)]  # go on from where others are
        assert float(take_step(unseeded[0])[0]) != float(take_step(unseeded[1])[0])

    def test_each_stage_sees_what_it_is_named_for(self) -> None:
        """Other ids, contents or weights change their stage, and no stage before it."""

        def stages(changed: Batch, trained: TrainingState) -> dict[str, int]:
            hasher = fingerprint.Hasher(trained.device)
            step = train_step(trained, [changed], 1, Shards(), False, hasher)[2]
            assert step is not None
            return dict(zip(STAGES, step.tolist(), strict=True))

        same, again = stages(batch(0), training()), stages(batch(0), training())
        assert same == again
        ids, inputs, targets = batch(0)
        other_ids = stages(Batch(ids + 1, inputs, targets), training())
        assert {name for name in same if same[name] != other_ids[name]} == {"sample_ids"}
        other_batch = stages(Batch(ids, inputs * 2, targets), training())
        assert other_batch["sample_ids"] == same["sample_ids"]
        assert other_batch["batch"] != same["batch"]
        slower = training()
        schedules.set_learning_rates(slower.optimizers, 0.5)
        differs = {name for name, value in stages(batch(0), slower).items() if value != same[name]}
        assert differs == {"weights"}

    def test_a_parameter_is_logged_as_the_step_found_it(self) -> None:
        """Values are read steps later; negative control: the step changed it."""
        model = methods.Scaled()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        method, cpu = methods.LogsParameters(Classification()), torch.device("cpu")
        inputs = torch.ones(8, model.in_features)
        part = Batch(torch.arange(8), inputs, torch.zeros(8, dtype=torch.int64))
        learnt = TrainingState(model, {"optimizer": optimizer}, method, cpu)
        logged = train_step(learnt, [part], 1, Shards(), True, None).values
        assert logged is not None
        assert logged["scale"] == 1.0
        assert model.scale != 1.0

    def test_gradients_are_those_before_clipping(self) -> None:
        """Clipping changes them in place, and the weights; negative control: without it, nothing
        is other."""

        def stages(clip_norm: float | None) -> list[int]:
            trained = replace(training(), gradient_clip_norm=clip_norm)
            found: list[int] = take_step(trained)[2].tolist()
            return found

        plain, clipped = stages(None), stages(1e-3)
        same = [name for name, a, b in zip(STAGES, plain, clipped, strict=True) if a == b]
        assert "gradients" in same
        assert "weights" not in same
        assert stages(None) == plain

    def test_a_batch_is_taken_before_a_model_changes_it(self) -> None:
        """A model may write into its inputs; negative control: its fingerprint knows zeros."""

        class Erasing(nn.Linear):
            def forward(self, inputs: Tensor) -> Tensor:
                outputs = super().forward(inputs * 1)
                inputs.zero_()
                return outputs

        ids, inputs, targets = batch(0)
        erasing = replace(training(), model=(model := Erasing(4, 3)))
        erasing = replace(erasing, optimizers={"it": torch.optim.SGD(model.parameters(), 0.1)})
        found = []
        for _ in range(2):  # the second time, they are zeros
            hasher = fingerprint.Hasher(erasing.device)
            taken = [Batch(ids, inputs, targets)]
            stages = train_step(erasing, taken, 1, Shards(), False, hasher)[2]
            assert stages is not None
            found.append(int(stages[STAGES.index("batch")]))
        assert inputs.eq(0).all()
        assert found[0] == int(take_step(training())[2][STAGES.index("batch")]) != found[1]

    @pytest.mark.parametrize("channels", [1, 3])
    def test_images_and_their_features_have_the_memory_order_that_was_asked_for(
        self, channels: int
    ) -> None:
        """One channel is in both orders; the strides say which, and change no value."""
        images = Batch(torch.arange(2), torch.rand(2, channels, 6, 6), torch.arange(2))
        convolution = nn.Conv2d(channels, 3, 3)
        for wanted in (False, True):
            moved = to_device(images, training(channels_last=wanted)).inputs
            assert torch.equal(moved, images.inputs)
            found = convolution(moved)
            assert found.is_contiguous(memory_format=torch.channels_last) is wanted

    def test_memory_begins_where_pytorch_would_have_it(self) -> None:
        """Kernels may sum in another order from another address; negative control: NumPy's begins
        anywhere."""
        elsewhere = 0
        for offset in range(0, 16, 4):  # in numbers of 4 bytes
            odd = torch.from_numpy(np.arange(100, dtype=np.float32)[offset:][:64])
            moved = to_device(Batch(odd, odd, odd), training()).inputs
            assert moved.data_ptr() % 64 == 0
            assert torch.equal(moved, odd)
            elsewhere += odd.data_ptr() % 64 != 0
        assert elsewhere > 0
        ours = torch.zeros(64)
        kept = to_device(Batch(ours, ours, ours), training()).inputs
        assert kept.data_ptr() == ours.data_ptr()


class NoisyInEvaluation(nn.Module):
    """A model that draws when it is evaluated, too."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(inputs + torch.rand_like(inputs) + random.random() + np.random.rand())


class Mean:
    """A metric like torchmetrics', which keeps the outputs themselves."""

    def reset(self) -> None:
        self.outputs: list[Tensor] = []

    def update(self, outputs: Tensor, _: Tensor) -> None:
        self.outputs.append(outputs)

    def compute(self) -> Tensor:
        return torch.cat(self.outputs).mean()


class TestEvaluate:
    def test_an_evaluation_is_the_mean_over_all_samples(self) -> None:
        """A last batch that is smaller weighs as much as its samples."""
        uneven = [batch(0), Batch(*(part[:3] for part in batch(8)))]
        model = training().model.eval()
        outputs = torch.cat([model(part.inputs).detach() for part in uneven])
        targets = torch.cat([part.targets for part in uneven])
        result = evaluate(training(), uneven, Shards())
        losses = F.cross_entropy(outputs, targets, reduction="none")
        assert result.values["loss"] == math.fsum(losses.tolist()) / 11
        assert result.values["accuracy"] == float((outputs.argmax(1) == targets).sum()) / 11
        assert torch.equal(result.predictions, outputs.argmax(1))
        assert torch.equal(result.targets, targets)
        hashes = [fingerprint.of_tensors([part]) for part in outputs.split((BATCH_SIZE, 3))]
        assert result.output_hashes.tolist() == [int(found) for found in hashes]
        by_batch = [float(part.mean()) for part in losses.split((BATCH_SIZE, 3))]
        assert result.values["loss"] != pytest.approx(sum(by_batch) / 2, rel=1e-6), (
            "negative control"
        )

    def test_what_a_model_draws_in_evaluation_belongs_to_the_samples(self) -> None:
        """History changes nothing; unseeded, it does; other seeds draw otherwise."""

        def outputs(seed: int | None) -> list[int]:
            torch.rand(3), random.random(), np.random.rand()
            torch.manual_seed(0)
            model = NoisyInEvaluation()
            noisy = replace(training(dropout_seed=seed), model=model)
            torch.rand(random.randrange(1, 99))
            return evaluate(noisy, samples(), Shards()).output_hashes.tolist()

        assert outputs(0) == outputs(0)
        assert outputs(0) != outputs(1)
        assert outputs(None) != outputs(None)

    def test_what_is_kept_does_not_grow_with_the_outputs(self) -> None:
        """Nor with what a target holds; negative control: it does with the samples."""

        def kept(classes: int, first: int = 0, repeats: int = 1) -> int:
            wide = replace(training(), model=nn.Linear(4, classes))
            rows = measure(wide, samples()[first:] * repeats, Shards())
            return sum(each.numel() for each in tensors_of([tuple(row) for row in rows]))

        assert kept(3) == kept(3000)
        assert kept(3) < kept(3, repeats=2)

    @pytest.mark.parametrize("reuses", [False, True])
    def test_a_method_may_use_its_output_buffer_again(self, reuses: bool) -> None:
        """For values of samples, predictions, sums and states of metrics."""

        class Reuses(Supervised):
            buffer, total = torch.zeros(BATCH_SIZE), torch.zeros(())

            def validation_step(self, model: nn.Module, batch: Batch) -> Any:
                if not reuses:
                    self.buffer, self.total = torch.zeros(BATCH_SIZE), torch.zeros(())
                values = self.buffer.copy_(batch.ids)
                total = self.total.copy_(values.sum())
                sums = (total, torch.tensor(BATCH_SIZE))
                return {"loss": values, "sums": sums, "predictions": values, "outputs": values}

            def compute(self, values: Any) -> dict[str, float]:
                return {"loss": values["loss"].mean(), "sum": values["sums"][0]}

        result = evaluate(
            replace(training(), method=Reuses(Classification()), metrics={"all": Mean()}),
            samples(),
            Shards(),
        )
        assert result.predictions is not None
        assert result.predictions.tolist() == list(range(SAMPLES))
        mean, total = (SAMPLES - 1) / 2, SAMPLES * (SAMPLES - 1) / 2
        assert result.values == {"loss": mean, "sum": total, "all": mean}


class Meddling(nn.Module):
    """Has a frozen part that a forward pass would train; changes a buffer, or merges an adapter.

    Adapters that are merged for an evaluation come out rounded.
    """

    def __init__(self, changes: str = "") -> None:
        super().__init__()
        self.frozen = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5)).eval()
        self.head, self.changes = nn.Linear(8, 3), changes
        self.register_buffer("passes", torch.zeros(()))
        self.adapter = torch.linspace(0.1, 0.7, 24).view(3, 8)

    def forward(self, inputs: Tensor) -> Tensor:
        self.passes += self.changes == "buffers"
        self.frozen.train()
        return self.head(self.frozen(inputs))

    def train(self, mode: bool = True) -> "Meddling":
        if self.changes == "weights" and mode != self.training:
            self.head.weight.data += self.adapter if not mode else -self.adapter
        return super().train(mode)


class TestAModelComesBackFromEvaluation:
    def test_modes_are_put_back(self) -> None:
        """Also when the evaluation is interrupted."""
        for stops in (False, True):
            trained = replace(training(strict=True), model=Meddling())
            with pytest.raises(Interrupted) if stops else nullcontext():
                evaluate(trained, samples(), Shards(asked_to_stop=functools.partial(bool, stops)))
            assert [each.training for each in trained.model.children()] == [False, True]

    @pytest.mark.parametrize("changes", ["buffers", "weights", ""])
    def test_state_that_an_evaluation_changes_is_refused(self, changes: str) -> None:
        """Under a preset that promises bits; negative controls: another preset, and no change."""
        trained = replace(training(strict=True), model=Meddling(changes))
        refused = pytest.raises(InputError, match=r"^model: expected an evaluation that leaves")
        with refused if changes else nullcontext():
            evaluate(trained, samples(), Shards())
        evaluate(replace(trained, strict=False), samples(), Shards())


class TwoHeads(nn.Module):
    """A model that returns the logits of two heads in a container."""

    def __init__(self, container: Any) -> None:
        super().__init__()
        self.first, self.second, self.container = nn.Linear(4, 3), nn.Linear(4, 3), container

    def forward(self, inputs: Tensor) -> Any:
        return self.container((self.first(inputs), self.second(inputs)))


class OfBoth:
    """A task of the user's for several outputs."""

    metric_name, higher_is_better = "loss", False

    def __init__(self, losses: Any = None) -> None:
        self.losses = self.metric = losses or self.of_both

    def of_both(self, outputs: Any, targets: Tensor) -> Tensor:
        heads = outputs.values() if isinstance(outputs, dict) else outputs
        return sum(F.cross_entropy(head, targets, reduction="none") for head in heads)

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return self.losses(outputs, targets).mean()

    def predictions(self, outputs: Any) -> Tensor:
        return outputs[:, 0] if isinstance(outputs, Tensor) else torch.zeros(BATCH_SIZE)


class TestWhatModelAndTaskReturn:
    @pytest.mark.parametrize("container", [tuple, lambda pair: dict(enumerate(pair))])
    def test_several_outputs(self, container: Any) -> None:
        """A task of the user's takes all, and all are hashed."""
        model, method = TwoHeads(container), Supervised(OfBoth())
        optimizers = {"optimizer": torch.optim.SGD(model.parameters(), 0.1)}
        both = replace(training(), model=model, optimizers=optimizers, method=method)
        loss, values, _ = take_step(both)
        result = evaluate(both, samples(), Shards())
        assert all(math.isfinite(x) for x in (loss, *values.values(), *result.values.values()))
        changed = replace(both, model=copy.deepcopy(both.model))
        with torch.no_grad():
            changed.model.second.bias += 1
        hashes = evaluate(changed, samples(), Shards()).output_hashes
        assert not (hashes == result.output_hashes).any(), "all outputs are hashed"

    @pytest.mark.parametrize(
        ("targets", "first"), [
            (torch.tensor([[3.0, 1.0], [4.0, 1.0]]), [3.0, 4.0]),
            ({"text": ["a", "b"], "class": torch.tensor([1, 2])}, [1, 2]),
            (torch.arange(5), [None, None]),
            (["a", "b"], [None, None]),
        ],
    )  # fmt: skip
    def test_targets_of_any_kind(self, targets: Any, first: list[Any]) -> None:
        """Listed is the first number of each sample's; of one that has none, that there is none."""
        task = OfBoth(lambda outputs, targets: outputs.mean(1))
        trained = replace(training(), method=Supervised(task))
        batch_of_two = Batch(torch.arange(2), torch.ones(2, 4), targets)
        found = evaluate(trained, [batch_of_two], Shards()).targets.tolist()
        assert [None if math.isnan(x) else x for x in found] == first


class Langevin(torch.optim.SGD):
    """An optimizer that draws."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(torch.randn_like(parameter) * 0.01 * np.random.rand())


def test_what_an_optimizer_draws_belongs_to_the_step() -> None:
    """Not to what the model drew before it; another step draws otherwise."""

    class Draws(nn.Linear):
        extra = 0

        def forward(self, inputs: Tensor) -> Tensor:
            torch.rand(self.extra), np.random.rand(self.extra)
            return super().forward(inputs)

    found = []
    for extra, step in ((0, 1), (3, 1), (0, 2)):
        torch.manual_seed(0)
        model = Draws(4, 3)
        model.extra = extra
        optimizers = {"optimizer": Langevin(model.parameters(), lr=0.1)}
        trained = replace(training(), model=model, optimizers=optimizers)
        take_step(trained, step)
        found.append(bits(model))
    assert found[0] == found[1]
    assert found[0] != found[2]


class Notes(Logger):
    """A run logger that notes what happened in which step."""

    def __init__(self, trained: TrainingState) -> None:
        super().__init__()
        self.optimizer = trained.optimizers["optimizer"]
        self.validated: list[int] = []
        self.best: list[int] = []
        self.saved: list[int] = []
        self.rates: list[float] = []

    def log_step(self, step: int, *_: Any) -> None:
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def log_validation(self, progress: Progress, result: Evaluation, is_best: bool) -> None:
        self.validated.append(progress.step)
        self.best += [progress.step] if is_best else []

    def save_checkpoint(self, progress: Progress) -> None:
        self.saved.append(progress.step)


def plan(**chosen: Any) -> Plan:
    factor = functools.partial(
        schedules.factor, total_steps=STEPS, warmup_fraction=0.25, final_fraction=0.1
    )
    usual: dict[str, Any] = {
        "total_steps": STEPS, "steps_per_epoch": 3, "log_every_steps": 1,
        "validate_every_epochs": 1, "checkpoint_every_steps": 0, "fingerprint_every_steps": 1,
        "early_stopping_patience": None, "learning_rate_factor": factor,
    }  # fmt: skip
    return Plan(**usual | chosen)


def fit(trained: TrainingState, how: Plan, validation: Iterable[Batch] | None = None) -> Notes:
    """Train to the end, and return what was noted."""
    notes, held_out = Notes(trained), samples() if validation is None else validation
    loop.fit(trained, how, Progress(), batches(), lambda: held_out, notes, Shards())
    return notes


class TestFit:
    @pytest.mark.parametrize(
        "chosen",
        [
            {"validate_every_epochs": 0},
            {"validate_every_epochs": 3},
            {"log_every_steps": 0},
            {"log_every_steps": 4},
            {"fingerprint_every_steps": 0},
            {"checkpoint_every_steps": 1},
        ],
    )
    def test_what_is_written_down_changes_no_bit(self, chosen: dict[str, int]) -> None:
        """Validation, logging, fingerprints and checkpoints, however often: the same weights."""
        usual, other = training(), training()
        fit(usual, plan())
        fit(other, plan(**chosen))
        assert bits(usual.model) == bits(other.model)

    def test_validations_and_checkpoints_come_when_planned(self) -> None:
        """After every so many epochs or steps, and at the end in any case."""
        assert fit(training(), plan()).validated == [3, 6, 9]
        assert fit(training(), plan(validate_every_epochs=2)).validated == [6, 9]
        assert fit(training(), plan(validate_every_epochs=0)).validated == [9]
        last = plan(total_steps=7, validate_every_epochs=0)
        assert [step for step in range(8) if last.validates_after(step)] == [7]
        assert fit(training(), plan(checkpoint_every_steps=4)).saved == [4, 8, 9]

    def test_the_learning_rate_follows_the_schedule(self) -> None:
        """Each step takes the peak times its factor, whatever the steps before took."""
        rates = fit(training(), plan()).rates
        assert rates == [0.1 * plan().learning_rate_factor(step) for step in range(STEPS)]

    def test_early_stopping_waits_as_long_as_it_was_told(self) -> None:
        """With a validation that never gains, the first is the best and patience is counted."""
        never = [Batch(torch.arange(2), torch.zeros(2, 4), torch.tensor([0, 0]))]
        constant = training()
        constant.model[4].requires_grad_(False).weight.zero_()
        stopped = fit(constant, plan(early_stopping_patience=1), validation=never)
        assert (stopped.validated, stopped.best) == ([3, 6], [3])
        patient = fit(constant, plan(early_stopping_patience=3), validation=never)
        assert patient.validated == [3, 6, 9]


@given(st.integers(0, 20), st.integers(1, 100))
def test_what_is_due_comes_regularly_and_at_the_end(every: int, total: int) -> None:
    """0 is never; otherwise the multiples and the last step."""
    due = [s for s in range(1, total + 1) if plan(total_steps=total).is_due(every, s)]
    multiples = set(range(every, total + 1, every)) if every else set()
    assert due == sorted(multiples | ({total} if every else set()))


class TestNoteValidation:
    @pytest.mark.parametrize(("higher", "best"), [(True, [0, 2]), (False, [0, 3])])
    def test_better_is_what_the_task_says(self, higher: bool, best: list[int]) -> None:
        """An equal metric is no gain, and a gain starts the counting again."""
        progress, found, waited = Progress(), [], []
        for step, metric in enumerate([0.5, 0.5, 0.7, 0.3]):
            progress.step = step
            if progress.note_validation(metric, higher):
                found.append(step)
            waited.append(progress.validations_without_gain)
        assert found == best
        assert progress.best_step == best[-1]
        assert waited == ([0, 1, 0, 1] if higher else [0, 1, 2, 0])

    def test_a_number_is_better_than_none(self) -> None:
        """A first metric that is not a number does not stay the best for ever."""
        progress = Progress()
        assert progress.note_validation(float("nan"), True)
        assert progress.note_validation(0.1, True)
        assert not progress.note_validation(float("nan"), True)


def test_the_factor_is_taken_of_the_peak_not_of_the_last_rate() -> None:
    """Each group keeps its own peak; a rate set twice is set once."""
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": weights[:1], "lr": 0.5}, {"params": weights[1:]}], 2.0)
    for _ in range(2):
        schedules.set_learning_rates({"optimizer": optimizer}, 0.25)
        assert [group["lr"] for group in optimizer.param_groups] == [0.125, 0.5]


class TestSchedule:
    fractions = st.floats(0, 1)

    @given(st.integers(2, 500), st.floats(0, 0.9), fractions)
    def test_it_rises_and_then_falls(self, total: int, warmup: float, final: float) -> None:
        """There is one peak."""
        factors = [schedules.factor(step, total, warmup, final) for step in range(total)]
        rising = [b > a for a, b in itertools.pairwise(factors) if a != b]
        assert rising == sorted(rising, reverse=True)
        assert all(min(final, 1 / 25) <= factor <= 1 for factor in factors)

    def test_its_ends_and_its_peak_are_those_that_are_named(self) -> None:
        """1/25 of the peak at first, the peak after the warm-up, the final fraction at last."""
        assert [schedules.factor(0, 1, warmup, 0.0) for warmup in (0.0, 1.0)] == [1, 1 / 25]
        assert {schedules.factor(step, 50, 0.0, 1.0) for step in range(50)} == {1.0}  # constant
        factors = [schedules.factor(step, 101, 0.25, 0.001) for step in range(101)]
        assert factors[0] == 1 / 25
        assert max(factors) == pytest.approx(1, abs=1e-3)
        assert abs(factors.index(max(factors)) - 25) <= 1
        assert factors[-1] == pytest.approx(0.001)


class TestTasks:
    @pytest.mark.parametrize("method", ["loss", "losses", "metric"])
    def test_targets_are_not_broadcast(self, method: str) -> None:
        """(B, 1) against (B,) would compare every sample with every other; (B, 1) is right."""
        compute = getattr(Regression(), method)
        with pytest.raises(InputError, match=r"shape \(4, 1\), got \(4,\)"):
            compute(torch.zeros(4, 1), torch.zeros(4))
        compute(torch.zeros(4, 1), torch.zeros(4, 1))

    @given(
        st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=30), st.randoms()
    )
    def test_a_mean_does_not_depend_on_order_or_batches(
        self, values: list[float], shuffled: random.Random
    ) -> None:
        """Any order, cut anywhere, gives the same bits."""
        assert sum([1e30, -1e30, 1.0]) != sum([-1e30, 1.0, 1e30]), "negative control: floats round"
        expected = tasks.mean([torch.tensor(values)])
        shuffled.shuffle(values)
        cut = shuffled.randrange(len(values) + 1)
        assert tasks.mean([torch.tensor(values[:cut]), torch.tensor(values[cut:])]) == expected
