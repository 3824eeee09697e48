"""One loss: in training, slices and evaluations it is the weighted mean over the
samples."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import accuracy_score, log_loss, mean_pinball_loss
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from seedbed import tasks
from seedbed.errors import InputError
from seedbed.methods import Method, Supervised
from seedbed.pipeline.source import Batch
from seedbed.run.failures import differing_losses
from seedbed.tasks import Binary, Classification, Multilabel, Quantile, Regression
from seedbed.training.evaluate import evaluate, measure, of_all_samples
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step, weighted
from tests import pages
from tests.running import TEMPLATE

SAMPLES = 16
FEATURES = 5
CLASSES = 4
NONE = -100
WEIGHTS = [0.5, 3.0, 1.0, 0.25]
DRAWS = torch.Generator().manual_seed(7)
INPUTS = torch.randn(SAMPLES, FEATURES, generator=DRAWS)
LABELS = torch.randint(CLASSES, (SAMPLES,), generator=DRAWS)
# The last four samples, a slice of four, have no label; the others have in part.
SOME = LABELS.where(torch.arange(SAMPLES) % 3 != 0, NONE).where(
    torch.arange(SAMPLES) < 12, NONE
)
PIXELS = torch.randint(CLASSES, (SAMPLES, 2, 3), generator=DRAWS)
PIXELS = PIXELS.where(torch.rand(SAMPLES, 2, 3, generator=DRAWS) < 0.7, NONE)
PIXELS[12:] = NONE
PROBABILITIES = torch.rand(SAMPLES, CLASSES, generator=DRAWS).softmax(1)


@dataclass
class Case:
    targets: Tensor
    smoothing: float = 0.0
    weights: list[float] | None = None

    def task(self) -> Classification:
        return Classification(self.smoothing, self.weights)

    def expected(self, outputs: Tensor) -> Tensor:
        """Return PyTorch's mean over all samples at once."""
        weights = None if self.weights is None else torch.tensor(self.weights)
        return F.cross_entropy(
            outputs, self.targets, weights, label_smoothing=self.smoothing
        )

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        if self.targets.dim() < 3:
            return nn.Linear(FEATURES, CLASSES)
        layers = nn.Linear(FEATURES, CLASSES * 6), nn.Unflatten(1, (CLASSES, 2, 3))
        return nn.Sequential(*layers)


CASES = {
    "all labelled": Case(LABELS),
    "smoothed": Case(LABELS, 0.1),
    "class weights": Case(LABELS, weights=WEIGHTS),
    "smoothed class weights": Case(LABELS, 0.2, WEIGHTS),
    "a class of weight 0": Case(LABELS, weights=[1.0, 0.0, 2.0, 1.0]),
    "unlabelled": Case(SOME),
    "unlabelled, smoothed": Case(SOME, 0.1),
    "unlabelled, smoothed class weights": Case(SOME, 0.1, WEIGHTS),
    "probabilities": Case(PROBABILITIES),
    "probabilities, smoothed class weights": Case(PROBABILITIES, 0.1, WEIGHTS),
    "pixels": Case(PIXELS),
    "pixels, smoothed class weights": Case(PIXELS, 0.1, WEIGHTS),
}
UNWEIGHTED = ("all labelled", "smoothed", "probabilities")
each_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def state(model: nn.Module, task: Any, method: Method | None = None) -> TrainingState:
    optimizers = {"optimizer": torch.optim.SGD(model.parameters(), lr=0.5)}
    return TrainingState(
        model, optimizers, method or Supervised(task), torch.device("cpu")
    )


def batches(targets: Tensor, *sizes: int) -> list[Batch]:
    parts = (part.split(sizes) for part in (torch.arange(SAMPLES), INPUTS, targets))
    return [Batch(*each) for each in zip(*parts, strict=True)]


def step(training: TrainingState, targets: Tensor, slices: int) -> Any:
    parts = batches(targets, *[SAMPLES // slices] * slices)
    return train_step(training, parts, 1, Shards(slices), True, None)


@each_case
@pytest.mark.parametrize("sizes", [(16,), (4, 4, 4, 4), (1, 9, 4, 2)], ids=str)
def test_an_evaluation_has_the_loss_of_all_samples_at_once(
    case: Case, sizes: tuple[int, ...]
) -> None:
    """Whatever the batches; the accuracy is over labels, each of which counts once."""
    model = case.model()
    values = evaluate(
        state(model, case.task()), batches(case.targets, *sizes), Shards()
    ).values
    outputs = model(INPUTS).detach()
    assert values["loss"] == pytest.approx(float(case.expected(outputs)), rel=1e-6)
    targets = case.targets
    if targets.is_floating_point():
        targets = targets.argmax(1)
    is_label = targets != NONE
    right = accuracy_score(targets[is_label], outputs.argmax(1)[is_label])
    assert values["accuracy"] == pytest.approx(right, rel=1e-6)


@each_case
@pytest.mark.parametrize("slices", [1, 2, 4])
def test_a_step_in_slices_is_that_of_the_whole_batch(case: Case, slices: int) -> None:
    """Loss, logged accuracy and update, though the slices have unequal weights."""
    model = case.model()
    whole = case.model()
    loss = case.expected(whole(INPUTS))
    loss.backward()
    taken = step(state(model, case.task()), case.targets, slices)
    assert float(taken.loss) == pytest.approx(float(loss), rel=1e-6)
    evaluated = evaluate(
        state(whole, case.task()), batches(case.targets, 16), Shards()
    ).values
    assert float(taken.values["accuracy"]) == pytest.approx(
        evaluated["accuracy"], rel=1e-6
    )
    for parameter, other in zip(model.parameters(), whole.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(parameter, other - 0.5 * other.grad)


def test_the_cases_have_slices_of_unequal_weights() -> None:
    """Negative control of the test above: the plain mean over slices is another
    number."""
    for name, case in CASES.items():
        model = case.model()
        parts = batches(case.targets, 4, 4, 4, 4)
        losses = [case.task().loss(model(part.inputs), part.targets) for part in parts]
        plain = float(torch.stack(losses).nan_to_num().mean())
        differs = plain != pytest.approx(float(case.expected(model(INPUTS))), rel=1e-4)
        assert differs != (
            name in UNWEIGHTED or name == "probabilities, smoothed class weights"
        )


@pytest.mark.parametrize("name", UNWEIGHTED)
@pytest.mark.parametrize("slices", [1, 2, 4])
def test_without_weights_the_bits_are_those_of_the_plain_mean(
    name: str, slices: int
) -> None:
    """Of losses, gradients and values: a weight that is 1 changes none."""
    case = CASES[name]
    model = case.model()
    whole = case.model()
    taken = step(state(model, case.task()), case.targets, slices)
    parts = batches(case.targets, *[SAMPLES // slices] * slices)
    losses = []
    gradients = []
    metrics = []
    for part in parts:
        outputs = whole(part.inputs)
        losses.append(
            F.cross_entropy(outputs, part.targets, label_smoothing=case.smoothing)
        )
        gradients.append(torch.autograd.grad(losses[-1], list(whole.parameters())))
        metrics.append(case.task().metric(outputs, part.targets).mean())
    assert float(taken.loss) == float(tree_mean(losses))
    assert float(taken.values["accuracy"]) == float(tree_mean(metrics))
    for parameter, other, *of_slices in zip(
        model.parameters(), whole.parameters(), *gradients, strict=True
    ):
        assert torch.equal(parameter, other - 0.5 * tree_mean(of_slices))


def tree_mean(parts: list[Tensor]) -> Tensor:
    count = len(parts)
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0] / count


def test_no_step_waits_for_the_device_to_know_its_weights() -> None:
    """A fake tensor has no values, so reading one raises. Negative control: reading
    one."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        outputs = torch.randn(SAMPLES, CLASSES, requires_grad=True)
        targets = torch.randint(CLASSES, (SAMPLES,))
        for task in (Classification(), Weighs(), Multilabel(), Regression()):
            several = isinstance(task, Multilabel | Regression)
            wanted = torch.zeros_like(outputs) if several else targets
            loss, weight = tasks.loss_of(task, outputs, wanted)
            loss.backward()
            tasks.values_of(task, "metric", task.metric(outputs, wanted), wanted)
            if weight is not None:
                weighted(loss, weight)
        with pytest.raises(DataDependentOutputException):
            bool(targets.sum() == 0)


class Ratio(Method):
    """A user's method whose loss and gradients are NaN without any token."""

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        counted = batch.targets != NONE
        losses = F.cross_entropy(model(batch.inputs), batch.targets, reduction="none")
        return {
            "loss": (losses * counted).sum() / counted.sum(),
            "weight": counted.sum(),
        }


class Weighs(Classification):
    """A user's task that gives losses and weights, and no loss."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize(
    "method",
    [Supervised(Classification(0.1, WEIGHTS)), Supervised(Weighs()), Ratio()],
    ids=["built in", "own losses", "own step"],
)
def test_a_batch_without_labels_contributes_nothing(
    method: Method, slices: int
) -> None:
    """Its loss and gradients are 0, and an evaluation does not see it."""
    model = nn.Linear(FEATURES, CLASSES)
    before = model.weight.clone()
    training = state(model, method.task, method)
    taken = step(training, torch.full((SAMPLES,), NONE), slices)
    assert float(taken.loss) == 0
    assert torch.equal(model.weight, before)
    if method.task is not None:
        with_one = batches(SOME, 12, 4)
        assert (with_one[1].targets == NONE).all()
        both, first = (
            evaluate(training, each, Shards()) for each in (with_one, with_one[:1])
        )
        assert both.values == first.values


def test_weights_of_float16_do_not_overflow() -> None:
    """Nor are those of bfloat16 rounded to 8 bits. Negative control: products in that
    dtype."""

    class Tokens(Ratio):
        def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
            loss = model(batch.inputs.to(model.weight.dtype)).square().mean()  # type: ignore[union-attr, operator]
            return {"loss": loss * 40, "weight": torch.tensor(5003.0)}

    found = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        model = nn.Linear(FEATURES, CLASSES).to(dtype)
        before = model.weight.detach().float().clone()
        taken = step(state(model, None, Tokens()), LABELS, 4)
        assert taken.loss.dtype is dtype
        found[dtype] = model.weight.detach().float() - before
    torch.testing.assert_close(
        found[torch.float16], found[torch.float32], rtol=0.05, atol=0.02
    )
    torch.testing.assert_close(
        found[torch.bfloat16], found[torch.float32], rtol=0.1, atol=0.1
    )
    product = torch.tensor([30.0], dtype=torch.float16) * torch.tensor(5003.0)
    assert product.isinf().all()


def test_sparse_gradients_are_weighted() -> None:
    """Those of embeddings: the update is that of dense ones."""
    found = []
    for sparse in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(6, CLASSES, sparse=sparse), nn.Flatten())
        ids = torch.arange(SAMPLES)
        whole = Batch(ids, (ids % 6)[:, None], SOME)
        parts = [
            Batch(*each) for each in zip(*(p.split(4) for p in whole), strict=True)
        ]
        train_step(state(model, Classification()), parts, 1, Shards(4), True, None)
        found.append(model[0].weight.detach())
    torch.testing.assert_close(*found)


def shown(page: str, file: str, name: str) -> Any:
    """Return a class that a page of the documentation defines in a file."""
    module: dict[str, Any] = {"__name__": "shown"}
    exec(pages.files((TEMPLATE / "docs" / page).read_text())[file], module)
    return module[name]


def test_the_documented_class_weights_weigh_training_and_evaluation_alike() -> None:
    kind = shown("examples/own-files.md", "src/project/data/leaves.py", "Weighted")
    task = kind({"weights": WEIGHTS})
    expected = F.cross_entropy(LOGITS, SOME, torch.tensor(WEIGHTS))
    assert values(task, LOGITS, SOME)[0] == pytest.approx(float(expected), rel=1e-6)
    loss, _ = tasks.loss_of(task, LOGITS, SOME)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_the_documented_loss_is_the_mean_of_its_losses() -> None:
    task = shown("your-code.md", "src/project/focal.py", "Focal")()
    loss, _ = tasks.loss_of(task, LOGITS, LABELS)
    assert float(loss) == pytest.approx(values(task, LOGITS, LABELS)[0], rel=1e-6)
    assert float(loss) < float(F.cross_entropy(LOGITS, LABELS))
    plain = shown("your-code.md", "src/project/focal.py", "Focal")(
        0.1, WEIGHTS, gamma=0
    )
    expected = F.cross_entropy(LOGITS, SOME, torch.tensor(WEIGHTS))
    smoothed = Case(SOME, 0.1).task().losses(LOGITS, SOME)
    assert torch.equal(plain.losses(LOGITS, SOME), smoothed)
    plain = replace(plain, label_smoothing=0)
    assert values(plain, LOGITS, SOME)[0] == pytest.approx(float(expected), rel=1e-6)


# Ready-made tasks


def values(task: Any, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return loss and metric of an evaluation of outputs, in batches of unequal
    sizes."""
    training = TrainingState(nn.Identity(), {}, Supervised(task), torch.device("cpu"))
    parts = (part.split([9, 7]) for part in (torch.arange(SAMPLES), outputs, targets))
    found = evaluate(
        training, [Batch(*b) for b in zip(*parts, strict=True)], Shards()
    ).values
    return found["loss"], found[task.metric_name]


LOGITS = torch.randn(SAMPLES, CLASSES, generator=DRAWS)
HOT = (torch.rand(SAMPLES, CLASSES, generator=DRAWS) < 0.3).float()


@pytest.mark.parametrize("targets", [HOT[:, 0], HOT[:, :1], HOT[:, 0].long()], ids=str)
@pytest.mark.parametrize(
    "outputs", [LOGITS[:, 0], LOGITS[:, :1]], ids=["flat", "column"]
)
def test_binary_is_the_log_loss_of_one_logit(outputs: Tensor, targets: Tensor) -> None:
    flat = targets.flatten()
    loss, accuracy = values(Binary(), outputs, targets)
    ones = outputs.flatten().sigmoid().double()
    assert loss == pytest.approx(log_loss(flat, ones), rel=1e-6)
    assert accuracy == accuracy_score(flat, ones > 0.5)
    assert torch.equal(Binary().predictions(outputs), (ones > 0.5).long())
    assert torch.equal(Binary().probabilities(outputs).argmax(1), (ones > 0.5).long())
    assert float(Binary().loss(outputs, targets)) == pytest.approx(loss, rel=1e-6)
    weighted, _ = values(Binary(pos_weight=3.0), outputs, targets)
    sample_weights = torch.where(flat > 0, 3.0, 1.0)
    mean_weight = float(sample_weights.mean())
    # as PyTorch's mean
    expected = log_loss(flat, ones, sample_weight=sample_weights) * mean_weight
    assert weighted == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("pos_weight", [None, 2.0, [1.0, 2.0, 3.0, 4.0]], ids=str)
def test_multilabel_is_the_mean_over_labels(pos_weight: Any) -> None:
    """Accuracy is per label, not that of whole rows."""
    weight = None if pos_weight is None else torch.tensor(pos_weight)
    loss, accuracy = values(Multilabel(pos_weight), LOGITS, HOT)
    expected = F.binary_cross_entropy_with_logits(LOGITS, HOT, pos_weight=weight)
    assert loss == pytest.approx(float(expected), rel=1e-6)
    assert accuracy == pytest.approx(
        accuracy_score(HOT.flatten(), LOGITS.flatten() > 0)
    )
    assert accuracy != pytest.approx(accuracy_score(HOT, LOGITS > 0))


def test_quantile_is_the_pinball_loss() -> None:
    levels = [0.1, 0.5, 0.75, 0.9]
    targets = LOGITS.sum(1)
    each = [
        mean_pinball_loss(targets, LOGITS[:, i], alpha=level)
        for i, level in enumerate(levels)
    ]
    for shaped in (targets, targets[:, None]):
        loss, metric = values(Quantile(levels), LOGITS, shaped)
        assert loss == metric == pytest.approx(np.mean(each), rel=1e-6)
    assert torch.equal(Quantile(levels).predictions(LOGITS), LOGITS[:, 2])


@pytest.mark.parametrize("targets", [LABELS, PIXELS], ids=["labels", "pixels"])
@pytest.mark.parametrize("weights", [None, WEIGHTS])
def test_labels_may_be_uint8(targets: Tensor, weights: Any) -> None:
    """As those of masks: the bits are those of int64. 255 may be no label; 156, -100 in
    8 bits, is a label."""
    task = Classification(class_weights=weights, ignore_index=255)
    outputs = Case(targets).model()(INPUTS).detach()
    targets = targets.clone().where(targets != -100, 255)
    targets[3] = 255
    assert values(task, outputs, targets.byte()) == values(task, outputs, targets)
    found, expected = (
        tasks.loss_of(task, outputs, each) for each in (targets.byte(), targets)
    )
    assert torch.equal(torch.stack(found), torch.stack(expected))
    label = torch.full((2,), 156, dtype=torch.uint8)
    assert Classification().metric_weights(label).tolist() == [1, 1]
    with pytest.raises(InputError, match="got 156 for training sample 0"):
        tasks.require_targets(Classification(), torch.arange(2), label, 4, "training")


class Penalised(Supervised):
    """Adds a penalty to each sample's loss, as a method may do that knows no
    weights."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        found = super().validation_step(model, batch)
        return {
            **found,
            "loss": found["loss"] + 1.0,
            "accuracy": 1.0 - found["accuracy"],
        }


def test_values_of_samples_without_weights_are_tensors() -> None:
    """So a method can change them. Where a sample's weight is not 1, they are pairs; an
    evaluation may have both. Negative control: a sample without a label."""
    training = TrainingState(
        nn.Identity(), {}, Penalised(Classification()), torch.device("cpu")
    )
    batch = Batch(torch.arange(SAMPLES), LOGITS, LABELS)
    found = evaluate(training, [batch], Shards()).values
    expected = float(F.cross_entropy(LOGITS, LABELS))
    assert found["loss"] == pytest.approx(expected + 1, rel=1e-6)
    step = partial(Supervised(Classification()).validation_step, nn.Identity())
    assert torch.equal(step(batch)["loss"], Classification().losses(LOGITS, LABELS))
    some = changed(LABELS, 12, -100)  # in the second batch of `values`
    losses, weights = step(batch._replace(targets=some))["loss"]
    assert (losses[12], weights.tolist()) == (
        0,
        [float(i != 12) for i in range(SAMPLES)],
    )
    assert values(Classification(), LOGITS, some)[0] == pytest.approx(
        float(F.cross_entropy(LOGITS, some)), rel=1e-6
    )


def test_regression_is_the_mean_squared_error() -> None:
    loss, metric = values(Regression(), LOGITS, HOT)
    assert loss == metric == pytest.approx(float(F.mse_loss(LOGITS, HOT)), rel=1e-6)


# Refusals


@pytest.mark.parametrize(
    ("task", "outputs", "targets", "said"),
    [
        (
            Classification(),
            LOGITS[:, :1],
            HOT[:, :1],
            "over one is constant, got (16, 1)",
        ),
        (
            Classification(),
            LOGITS,
            HOT[:, 0],
            (
                "int64 or uint8 (16,), or probabilities, float32 "
                "(16, 4); got float32 (16,); convert"
            ),
        ),
        (Classification(), LOGITS, LABELS.int(), "got int32 (16,); convert"),
        (Classification(), LOGITS, HOT.long(), "got int64 (16, 4); convert"),
        (
            Classification(),
            LOGITS,
            LABELS + 1,
            "expected labels below 4, the number of outputs",
        ),
        (
            Classification(class_weights=[1.0, 2.0]),
            LOGITS,
            LABELS,
            "expected 4 numbers, one for",
        ),
        (Binary(), LOGITS, LABELS, "expected one output and one target per sample"),
        (
            Multilabel(),
            LOGITS,
            LABELS,
            "expected targets of the outputs' shape (16, 4), got (16,)",
        ),
        (
            Multilabel([1.0, 2.0]),
            LOGITS,
            HOT,
            "expected one number, or 4, one for each label, got",
        ),
        (
            Quantile(),
            LOGITS,
            LOGITS[:, 0],
            "expected an output for each of 3 quantiles and one",
        ),
    ],
)
def test_outputs_and_targets_that_do_not_fit_are_refused(
    task: Any, outputs: Tensor, targets: Tensor, said: str
) -> None:
    """In one line, by the losses as by the loss of training."""
    for work in (task.losses, partial(tasks.loss_of, task)):
        with pytest.raises(InputError) as caught:
            work(outputs, targets)
        line = str(caught.value)
        assert line.startswith("data.task")
        assert said in line
        assert "\n" not in line


@dataclass(frozen=True)
class Column(Classification):
    """Has weights of another shape, for a loss of its own or for `losses`."""

    shape: Sequence[int] = (-1, 1)

    def loss_weights(self, targets: Tensor) -> Tensor:
        return torch.ones(SAMPLES).reshape(*self.shape)


class OwnLoss(Column):
    """The mean by one kernel."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)


class ColumnOfLosses(Classification):
    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets)[:, None]


@pytest.mark.parametrize(
    "task", [Column(), OwnLoss(), ColumnOfLosses(), Column(shape=(4, 4))]
)
def test_weights_that_would_broadcast_are_refused(task: Any) -> None:
    """(B, 1) against (B,) is (B, B) values. Negative control: the same weights,
    (B,)."""
    works: list[Callable[[], Any]] = [partial(tasks.loss_of, task, LOGITS, LABELS)]
    if not isinstance(task, OwnLoss):
        works.append(partial(values, task, LOGITS, LABELS))
    for work in works:
        with pytest.raises(
            InputError, match=r"a number for each sample, \(B,\), from loss_"
        ):
            work()
    if isinstance(task, Column):
        loss, _ = tasks.loss_of(replace(task, shape=(-1,)), LOGITS, LABELS)
        assert float(loss) == pytest.approx(
            float(F.cross_entropy(LOGITS, LABELS)), rel=1e-6
        )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Classification(label_smoothing=2),
            "label_smoothing: expected a number from 0 to",
        ),
        (
            lambda: Classification(class_weights=[1, -1]),
            "class_weights: expected a number >= 0",
        ),
        (
            lambda: Classification(0.1, [1, 0]),
            "class_weights: expected numbers > 0 with label_smo",
        ),
        (
            lambda: Quantile([0.5, 1.0]),
            "quantiles: expected numbers between 0 and 1, got [0.5, 1",
        ),
    ],
)
def test_arguments_out_of_range_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(InputError, match=f"^data.task.{said.replace('[', '.')}"):
        make()


def changed(targets: Tensor, row: int, value: Any) -> Tensor:
    targets = targets.clone()
    targets[row] = value
    return targets


@pytest.mark.parametrize(
    ("task", "targets", "said"),
    [
        (
            Classification(),
            changed(LABELS, 5, 4),
            "labels from 0 to 3 (data.outputs=4), or -100 for none, got 4",
        ),
        (Classification(), changed(LABELS, 5, -1), "got -1"),
        (Classification(), changed(PIXELS, 5, 9), "got 9"),
        (
            Classification(),
            changed(PROBABILITIES, 5, 1.0),
            "data.task={name: multilabel}), got a sum of 4",
        ),
        (Binary(), changed(HOT[:, 0], 5, -1), "targets from 0 to 1, got -1"),
        (Multilabel(), changed(HOT, 5, 2), "targets from 0 to 1, got 2"),
    ],
)
@pytest.mark.parametrize("work", ["training", "evaluation"])
def test_targets_out_of_range_are_refused_with_the_sample(
    task: Any, targets: Tensor, said: str, work: str
) -> None:
    """Before they go to the device, as a GPU would only say that an assertion
    failed."""
    model = (
        nn.Linear(FEATURES, 1) if isinstance(task, Binary) else Case(targets).model()
    )
    training = replace(state(model, task), outputs=CLASSES)
    part = Batch(torch.arange(100, 100 + SAMPLES), INPUTS, targets)
    works: dict[str, Callable[[], Any]] = {
        "training": lambda: train_step(training, [part], 1, Shards(), False, None),
        "evaluation": lambda: evaluate(training, [part], Shards()),
    }
    with pytest.raises(InputError) as caught:
        works[work]()
    line = str(caught.value)
    assert said in line
    assert line.endswith(f"for {work} sample 105")
    assert "\n" not in line


@pytest.mark.parametrize(
    "targets", [LABELS, SOME, PIXELS, PROBABILITIES, LABELS.byte()], ids=str
)
def test_targets_that_fit_are_not_refused(targets: Tensor) -> None:
    """Negative control. Without `data.outputs`, labels have no upper end here."""
    ids = torch.arange(SAMPLES)
    tasks.require_targets(Classification(), ids, targets, CLASSES, "training")
    tasks.require_targets(
        Classification(), ids, changed(LABELS, 0, 9), None, "training"
    )


# Two losses


class Sharper(Classification):
    """Gives losses alone: they are what is trained."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets) ** 2


class Both(Sharper):
    """Gives the mean, too, as a fused kernel may."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.losses(outputs, targets).mean()


class Other(Classification):
    """Gives another loss than its losses."""

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * super().loss(outputs, targets)


class Heavier(Classification):
    """Gives other weights alone."""

    def loss_weights(self, targets: Tensor) -> Tensor:
        return 1.0 + targets


def test_the_class_that_says_the_losses_says_the_loss() -> None:
    """A subclass that overrides losses or weights alone trains by them, not by its
    base's loss."""
    own = {
        Binary: False,
        Classification: True,
        Sharper: False,
        Both: True,
        Other: True,
        Heavier: False,
    }
    for kind, is_own in own.items():
        assert tasks.has_own_loss(kind()) == is_own
    losses = F.cross_entropy(LOGITS, LABELS, reduction="none")
    assert torch.equal(
        tasks.loss_of(Sharper(), LOGITS, LABELS)[0], (losses**2).sum() / SAMPLES
    )
    heavier, weight = tasks.loss_of(Heavier(), LOGITS, LABELS)
    torch.testing.assert_close(
        heavier, (losses * (1 + LABELS)).sum() / (1 + LABELS).sum()
    )
    assert weight == (1.0 + LABELS).mean()


class TwoSteps(Method):
    """A method with a loss in each step; the training's is times `factor`."""

    def __init__(
        self, factor: float = 1.0, name: str = "loss", draws: bool = False
    ) -> None:
        self.factor = factor
        self.name = name
        self.draws = draws

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        outputs = model(batch.inputs)
        outputs = outputs + torch.randn_like(outputs) if self.draws else outputs
        return F.cross_entropy(outputs, batch.targets, reduction="none")

    def training_step(self, model: Any, batch: Batch, optimizer: str) -> Any:
        loss = self.losses(model, batch).mean()
        with torch.no_grad():
            model[0].weight += 1  # which an own step may do; it is undone
        return loss * self.factor

    def validation_step(self, model: Any, batch: Batch) -> Any:
        return {self.name: self.losses(model, batch)}


@pytest.mark.parametrize(
    ("method", "said"),
    [
        (Supervised(Classification(0.1, WEIGHTS)), None),
        (Supervised(Both()), None),
        (Supervised(Sharper()), None),
        (Supervised(Other()), "warning: data.task: Other.loss gives"),
        (TwoSteps(), None),
        (TwoSteps(draws=True), None),
        (TwoSteps(factor=2.0), "warning: method: TwoSteps.training_step gives"),
        (TwoSteps(factor=2.0, name="other"), None),
        (Ratio(), None),
    ],
)
def test_a_second_loss_is_compared_with_the_first(
    method: Method, said: str | None
) -> None:
    """With the same draws and the same bits of the model afterwards; named if it
    differs."""
    model = nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.Dropout(0.5))
    if isinstance(method, Ratio):
        method.task = Classification()
    training = state(model, method.task, method)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    part = batches(LABELS, 16)[0]
    evaluated = of_all_samples(measure(training, [part], Shards())).get("loss")
    line = differing_losses(training, part, evaluated)
    assert (line is None) == (said is None), line
    if line is not None and said is not None:
        assert line.startswith(said)
        assert "first 16 validation samples" in line
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert model.training
    assert model[1].training
