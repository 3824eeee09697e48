"""The tasks of `data.task`: what a sample's loss is, what it weighs, and the metric to
report.

A user-defined task (`data.task._target_`) has the same members, or extends one of
these. Its `losses` say what is minimised: the loss of any set of samples is their
weighted mean. Outputs are those of the model: a single tensor is converted to float32,
anything else (a tuple, a mapping, an object) is unchanged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from seedbed.config import build
from seedbed.errors import InputError

__all__ = ["Binary", "Classification", "Multilabel", "Quantile", "Regression", "Task"]

_SUM_TOLERANCE = 1e-2  # of probabilities, also in 16 bits


class Task:
    """A task that gives `losses`: its `loss` is their weighted mean."""

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        """Return the weighted mean of `losses`, a scalar."""
        return loss_of(self, outputs, targets)[0]


@dataclass(frozen=True)
class Classification:
    """Cross-entropy with label smoothing (Szegedy et al. 2016); the metric is accuracy.

    Targets are class numbers, int64 or uint8, (B,) for logits (B, C), or (B, ...) for
    (B, C, ...), as of the pixels of an image; or probabilities of the logits' shape.
    Every mean is that of `F.cross_entropy(reduction="mean")` over all samples at once.
    """

    label_smoothing: float = 0.0
    class_weights: Sequence[float] | None = None
    ignore_index: int = -100  # the target of what has no label
    metric_name = "accuracy"
    higher_is_better = True

    def __post_init__(self) -> None:
        if not 0 <= self.label_smoothing <= 1:
            raise InputError(
                "data.task.label_smoothing: expected a number from 0 to 1, got "
                f"{self.label_smoothing}"
            )
        if self.class_weights is not None and min(self.class_weights, default=-1) < 0:
            raise InputError(
                "data.task.class_weights: expected a number >= 0 for each class, got "
                f"{list(self.class_weights)}"
            )
        if (
            self.label_smoothing
            and self.class_weights is not None
            and 0 in self.class_weights
        ):
            # PyTorch's mean then has the smoothing of these samples, which weigh
            # nothing.
            raise InputError(
                "data.task.class_weights: expected numbers > 0 with label_smoothing,"
                f" got {list(self.class_weights)}; give samples that do not count the"
                f" target {self.ignore_index}, or set label_smoothing=0"
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the weighted mean of `losses`, a scalar, by one kernel; NaN without
        any label."""
        return self._cross_entropy(outputs, targets, "mean")

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, (B,): the weighted mean over its labels; 0 if it
        has none."""
        weighted = _sums(self._cross_entropy(outputs, targets, "none"))
        weights = self._weights(targets)
        return torch.where(weights == 0, 0, weighted / weights)

    def loss_weights(self, targets: Tensor) -> Tensor | None:
        """Return the weight of each sample's loss, float32 (B,): its labels' weights,
        summed."""
        # A subclass with losses of its own may have targets of any kind.
        return self._weights(targets) if isinstance(targets, Tensor) else None

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each sample's labels that are predicted, float32 (B,).

        If targets are probabilities, as with MixUp, the most likely class is the label.
        """
        weights = self._counts(targets)
        targets = (
            self.predictions(targets)
            if targets.is_floating_point()
            else _labels(targets)
        )
        is_right = (self.predictions(outputs) == targets) & (
            targets != self.ignore_index
        )
        return torch.where(weights == 0, 0, _sums(is_right.float()) / weights)

    def metric_weights(self, targets: Tensor) -> Tensor | None:
        """Return the number of each sample's labels, float32 (B,)."""
        return self._counts(targets) if isinstance(targets, Tensor) else None

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the most likely classes, int64 (B,) or (B, ...)."""
        return outputs.argmax(dim=1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, float32 (B, C)."""
        return outputs.softmax(dim=1)

    def misfits(self, targets: Tensor, outputs: int | None) -> "Misfits | None":
        """Return which targets are no labels (or probabilities) of `outputs` classes,
        if any."""
        if targets.is_floating_point():
            if targets.dim() < 2 or targets.shape[1] == 1:  # which `losses` refuses
                return None
            sums = targets.sum(dim=1)
            is_bad = ((sums - 1).abs() > _SUM_TOLERANCE) | (targets < 0).any(dim=1)
            expected = (
                "probabilities that sum to 1 (for several labels per sample, "
                "data.task={name: multilabel})"
            )
            return _misfits(is_bad, expected, sums, "a sum of ")
        targets = _labels(targets)
        # One pass, in every step; what follows is for messages and unlabelled samples.
        if targets.numel() and targets.dtype is torch.int64:
            least, most = torch.aminmax(targets)
            if int(least) >= 0 and (outputs is None or int(most) < outputs):
                return None
        is_bad = (targets < 0) & (targets != self.ignore_index)
        if outputs is not None:
            is_bad |= targets >= outputs
        expected = f"labels from 0 to {'C - 1' if outputs is None else outputs - 1}"
        of = "" if outputs is None else f" (data.outputs={outputs})"
        return _misfits(
            is_bad, f"{expected}{of}, or {self.ignore_index} for none", targets
        )

    def _counts(self, targets: Tensor) -> Tensor:
        """Return the number of each sample's labels, float32 (B,)."""
        if targets.is_floating_point():  # probabilities
            return _sums(torch.ones_like(targets[:, 0], dtype=torch.float32))
        return _sums((_labels(targets) != self.ignore_index).float())

    def _weights(self, targets: Tensor) -> Tensor:
        """Return the sum of the weights of each sample's labels, float32 (B,)."""
        if self.class_weights is None or targets.is_floating_point():
            return self._counts(targets)
        targets = _labels(targets)
        is_label = targets != self.ignore_index
        weights = _on(targets.device, self.class_weights)[
            targets.where(is_label, 0).long()
        ]
        return _sums(weights.where(is_label, 0))

    def _cross_entropy(
        self, outputs: Tensor, targets: Tensor, reduction: str
    ) -> Tensor:
        self._require_fitting(outputs, targets)
        weights = self.class_weights
        try:
            return F.cross_entropy(
                outputs,
                _labels(targets),
                None if weights is None else _on(outputs.device, weights),
                ignore_index=self.ignore_index,
                label_smoothing=self.label_smoothing,
                reduction=reduction,
            )
        except IndexError as error:  # on the CPU
            raise InputError(
                f"data.task: expected labels below {outputs.shape[1]}, the number of"
                f" outputs of the model, got others ({error}); set data.outputs to the"
                " number of classes"
            ) from None

    def _require_fitting(self, outputs: Tensor, targets: Tensor) -> None:
        """Raise InputError for shapes and dtypes that cross-entropy does not take."""
        _require_rows(outputs, targets)
        if outputs.dim() == 1:
            raise InputError(
                "model: expected scores for at least two classes of each sample,"
                f" ({len(outputs)}, C), for classification, got one number for each of"
                f" {len(outputs)} samples; return the scores without argmax, max or"
                " squeeze (for one score, data.task={name: binary})"
            )
        classes = outputs.shape[1]
        if classes == 1:
            raise InputError(
                "data.task: expected outputs (B, C) of at least two classes for"
                " classification, as a softmax over one is constant, got"
                f" {tuple(outputs.shape)}; set data.task={{name: binary}} for one"
                " output, or data.outputs=2"
            )
        if self.class_weights is not None and len(self.class_weights) != classes:
            raise InputError(
                f"data.task.class_weights: expected {classes} numbers, one for each"
                f" output of the model, got {len(self.class_weights)}"
            )
        shape = outputs.shape[:1] + outputs.shape[2:]
        is_label = targets.dtype in (torch.int64, torch.uint8)
        is_probability = targets.is_floating_point() and targets.shape == outputs.shape
        if not is_probability and not (is_label and targets.shape == shape):
            raise InputError(
                f"data.task: expected targets for outputs {tuple(outputs.shape)}: class"
                f" numbers, int64 or uint8 {tuple(shape)}, or probabilities, float32"
                f" {tuple(outputs.shape)}; got {_dtype(targets)}"
                f" {tuple(targets.shape)}; convert them in the data set, or choose"
                " another task"
            )


@dataclass(frozen=True)
class Binary(Task):
    """Binary cross-entropy of one logit per sample; the metric is accuracy.

    Outputs are (B,) or (B, 1), targets 0 or 1 (or a probability between), of either
    shape.
    """

    # of targets 1, as of `F.binary_cross_entropy_with_logits`
    pos_weight: float | None = None
    metric_name = "accuracy"
    higher_is_better = True

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, float32 (B,)."""
        logits, wanted = _one_each(outputs, targets)
        weight = (
            None if self.pos_weight is None else _on(outputs.device, [self.pos_weight])
        )
        entropy = F.binary_cross_entropy_with_logits
        return entropy(logits, wanted, pos_weight=weight, reduction="none")

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return whether each sample's prediction is correct, as float32 (B,)."""
        logits, wanted = _one_each(outputs, targets)
        return ((logits > 0) == (wanted > 0.5)).float()

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the more likely class, int64 (B,)."""
        return (outputs.reshape(len(outputs)) > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, float32 (B, 2)."""
        of_one = outputs.reshape(len(outputs)).sigmoid()
        return torch.stack([1 - of_one, of_one], dim=1)

    def misfits(self, targets: Tensor, outputs: int | None) -> "Misfits | None":
        """Return which targets are not from 0 to 1, if any."""
        return _outside_of_0_and_1(targets)


@dataclass(frozen=True)
class Multilabel(Task):
    """Binary cross-entropy of several labels per sample; the metric is accuracy per
    label.

    Outputs are logits (B, L), targets 0 or 1 of the same shape. The loss and the metric
    of a sample are means over its labels. For others, such as the macro F1, see
    `metrics` in docs/methods.md.
    """

    # of targets 1, for all labels or for each
    pos_weight: float | Sequence[float] | None = None
    metric_name = "accuracy"
    higher_is_better = True

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, float32 (B,)."""
        _require_same_shape(outputs, targets)
        weights: Tensor | None = None
        if self.pos_weight is not None:
            given = self.pos_weight
            numbers = given if isinstance(given, Sequence) else [given]
            if len(numbers) not in (1, outputs.shape[-1]):
                raise InputError(
                    "data.task.pos_weight: expected one number, or"
                    f" {outputs.shape[-1]}, one for each label, got {len(numbers)}"
                )
            weights = _on(outputs.device, numbers)
        entropy = F.binary_cross_entropy_with_logits
        return _means(
            entropy(outputs, targets.float(), pos_weight=weights, reduction="none")
        )

    def metric(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of each sample's labels that are predicted, float32 (B,)."""
        return _means(((outputs > 0) == (targets > 0.5)).float())

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return whether each label is predicted, int64 (B, L)."""
        return (outputs > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label, float32 (B, L)."""
        return outputs.sigmoid()

    def misfits(self, targets: Tensor, outputs: int | None) -> "Misfits | None":
        """Return which targets are not from 0 to 1, if any."""
        return _outside_of_0_and_1(targets)


@dataclass(frozen=True)
class Regression:
    """Mean squared error of (B, ...) against (B, ...), as the loss and as the
    metric."""

    metric_name = "mse"
    higher_is_better = False

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean of `losses`, a scalar, by one kernel."""
        _require_same_shape(outputs, targets)
        return F.mse_loss(outputs, targets)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's mean squared error, float32 (B,)."""
        _require_same_shape(outputs, targets)
        return _means((outputs - targets) ** 2)

    metric = losses

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return each sample's outputs, float32 (B, ...)."""
        return outputs


@dataclass(frozen=True)
class Quantile(Task):
    """The pinball loss of several quantiles (Koenker & Bassett 1978), also as the
    metric.

    Outputs are (B, Q), one for each of `quantiles`; targets are numbers, (B,) or (B,
    1).
    """

    quantiles: Sequence[float] = (0.1, 0.5, 0.9)
    metric_name = "pinball"
    higher_is_better = False

    def __post_init__(self) -> None:
        if not self.quantiles or not all(0 < each < 1 for each in self.quantiles):
            raise InputError(
                "data.task.quantiles: expected numbers between 0 and 1, got"
                f" {list(self.quantiles)}"
            )

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return each sample's loss, float32 (B,): the mean over the quantiles."""
        _require_rows(outputs, targets)
        shape = (len(outputs), len(self.quantiles))
        if outputs.shape != shape or targets.numel() != len(outputs):
            raise InputError(
                f"data.task: expected an output for each of {shape[1]} quantiles and"
                f" one target per sample, got outputs {tuple(outputs.shape)} and"
                f" targets {tuple(targets.shape)}; set data.outputs={shape[1]}"
            )
        levels = _on(outputs.device, self.quantiles)
        errors = targets.reshape(-1, 1) - outputs
        return torch.maximum(levels * errors, (levels - 1) * errors).mean(dim=1)

    metric = losses

    def predictions(self, outputs: Tensor) -> Tensor:
        """Return the quantile in the middle, float32 (B,)."""
        return outputs[:, len(self.quantiles) // 2]


def make(spec: Mapping[str, Any]) -> Any:
    """Build the task of `data.task`: a built-in one by its name, or a user-defined
    one."""
    if "_target_" not in spec:
        spec = {**spec, "_target_": f"seedbed.tasks.{spec['name'].capitalize()}"}
    return build.build(spec, "data.task")


def has_own_loss(task: Any) -> bool:
    """Return whether training uses a task's `loss` in place of the weighted mean of its
    `losses`.

    Not if a subclass of the class that defines `loss` overrides the losses or their
    weights.
    """
    return _has_own_loss(type(task))  # type: ignore[arg-type]


@lru_cache(maxsize=16)  # asked in every step
def _has_own_loss(task_class: type) -> bool:
    classes = task_class.__mro__

    def position_of(name: str) -> int:
        return next(
            (i for i, each in enumerate(classes) if name in vars(each)), len(classes)
        )

    return position_of("loss") < len(classes) and position_of("loss") <= min(
        position_of("losses"), position_of("loss_weights")
    )


def is_built_in(loss: Any) -> bool:
    """Return whether a task's `loss` is that of a built-in one, the mean of its
    `losses`."""
    return loss in (Classification.loss, Regression.loss)


def loss_of(task: Any, outputs: Any, targets: Any) -> tuple[Tensor, Tensor | None]:
    """Return the loss of the samples of a slice, and the slice's weight; None: all have
    the same.

    The loss is the weighted mean of `losses`. Without any label it is 0, as are its
    gradients, and the weight is 0. Else, if nothing is weighted or unlabelled, the
    weight is exactly 1.
    """
    is_own = has_own_loss(task)
    loss = task.loss(outputs, targets) if is_own else task.losses(outputs, targets)
    weights = _weights_of(task, "loss", None if is_own else loss, targets)
    if weights is None:
        return (loss if is_own else loss.mean()), None
    total = weights.sum()
    if not is_own:
        loss = _weighted(loss, weights).sum() / total
    # Where the number is known, half of these operations are saved, in both passes.
    is_known = type(total) is Tensor and total.is_cpu  # else a GPU would be waited for
    if not is_known or total.item() == 0:
        loss = loss.new_zeros(()).where(total == 0, loss)
    return loss, total / len(weights)


def values_of(task: Any, quantity: str, values: Tensor, targets: Any) -> Any:
    """Return `loss` or `metric` of each sample, (B,), or if they have weights, a pair:
    both (B,).

    The pair is (value times weight, weight).
    """
    weights = _weights_of(task, quantity, values, targets)
    return values if weights is None else (_weighted(values, weights), weights)


def plain(values: Any) -> Any:
    """Return what `values_of` returned, of a pair whose weights are all 1 the values
    alone."""
    has_weights = isinstance(values, tuple) and not (values[1] == 1).all()
    return values[0] if isinstance(values, tuple) and not has_weights else values


def _weights_of(
    task: Any, quantity: str, values: Tensor | None, targets: Any
) -> Tensor | None:
    """Return the weights of a task's `loss` or `metric`, (B,), or None if all are 1.

    Raises InputError for shapes that would broadcast silently, such as (B, 1) against
    (B,).

    Args:
        values: those that are weighted; None if the task weighs them in its own `loss`.
    """
    function = getattr(task, f"{quantity}_weights", None)
    weights: Tensor | None = None if function is None else function(targets)
    if weights is None:
        return None
    shape = tuple(weights.shape)
    if len(shape) != 1 or (values is not None and values.shape != weights.shape):
        values_are = "" if values is None else f" for values {tuple(values.shape)}"
        raise InputError(
            "data.task: expected a number for each sample, (B,), from"
            f" {quantity}_weights of {type(task).__name__} as from what it"
            f" weighs, got {shape}{values_are}"
        )
    return weights


def _weighted(values: Tensor, weights: Tensor) -> Tensor:
    """Return values times weights; 0 where the weight is 0, whatever the value."""
    return torch.where(weights == 0, 0, values * weights)


class Misfits(NamedTuple):
    """Targets that a task does not take; `require_targets` names the first."""

    row: int  # in the batch
    got: str
    expected: str


def require_targets(
    task: Any, ids: Tensor, targets: Any, outputs: int | None, whose: str
) -> None:
    """Raise InputError for targets on the CPU that a built-in task does not take.

    Args:
        outputs: `data.outputs`, if there is such a key: the number of classes.
        whose: `training` or `evaluation`, for the message.
    """
    if not isinstance(targets, Tensor):
        got = f"a {type(targets).__name__}"
        if isinstance(targets, Sequence) and targets:
            got += f" of {type(targets[0]).__name__}"
        raise InputError(
            f"data.task: expected targets as a tensor, got {got} from the {whose}"
            " samples; convert them in the data set, as labels to class numbers, or"
            " write a task with losses of its own"
        )
    if targets.device.type != "cpu" or not targets.dim():
        return
    bad = task.misfits(targets, outputs)
    if bad is not None:
        raise InputError(
            f"data.task: expected {bad.expected}, got {bad.got} for {whose} sample "
            f"{int(ids[bad.row])}"
        )


def takes_checked_targets(task: Any) -> bool:
    """Return whether the targets of a built-in task, or of one with its losses, are
    checked."""
    known = (Classification, Binary, Multilabel)
    return isinstance(task, known) and any(
        type(task).losses is each.losses for each in known
    )


def _misfits(
    is_bad: Tensor, expected: str, shown: Tensor, of: str = ""
) -> Misfits | None:
    if not is_bad.any():
        return None
    index = is_bad.nonzero()[0].tolist()
    return Misfits(index[0], f"{of}{shown[tuple(index)].item():g}", expected)


def _outside_of_0_and_1(targets: Tensor) -> Misfits | None:
    return _misfits((targets < 0) | (targets > 1), "targets from 0 to 1", targets)


def _require_rows(outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError for outputs that are not one for each target."""
    if targets.dim() and outputs.shape[:1] != targets.shape[:1]:
        raise InputError(
            f"model: expected outputs for each of {len(targets)} samples, as targets"
            f" {tuple(targets.shape)}, got {tuple(outputs.shape)}; keep the first"
            " dimension, the batch: look for mean(0), squeeze, reshape and indexing"
        )


def _require_same_shape(outputs: Tensor, targets: Tensor) -> None:
    """Raise InputError for shapes that would broadcast silently, such as (B, 1) against
    (B,)."""
    _require_rows(outputs, targets)
    if outputs.shape != targets.shape:
        raise InputError(
            f"data.task: expected targets of the outputs' shape {tuple(outputs.shape)},"
            f" got {tuple(targets.shape)}"
        )


def _one_each(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return outputs and targets as float32 (B,); raise InputError for several per
    sample."""
    _require_rows(outputs, targets)
    count = len(outputs)
    if outputs.numel() != count or targets.numel() != count:
        raise InputError(
            "data.task: expected one output and one target per sample, (B,) or (B, 1),"
            f" for binary, got {tuple(outputs.shape)} and {tuple(targets.shape)}; set"
            " data.outputs=1, or data.task={name: classification}"
        )
    return outputs.reshape(count), targets.reshape(count).float()


def _sums(values: Tensor) -> Tensor:
    """Return the sum of each sample's numbers, (B,)."""
    return values if values.dim() == 1 else values.flatten(1).sum(dim=1)


def _means(values: Tensor) -> Tensor:
    """Return the mean of each sample's numbers, (B,)."""
    return values.reshape(len(values), -1).mean(dim=1)


def _labels(targets: Tensor) -> Tensor:
    """Return class numbers as int64.

    PyTorch takes no uint8 for pixels, and a comparison of uint8 with -100 is one with
    156.
    """
    return targets.long() if targets.dtype == torch.uint8 else targets


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _on(device: torch.device, numbers: Sequence[float]) -> Tensor:
    return _tensor(tuple(numbers), device)


@lru_cache(maxsize=16)  # a copy to a GPU in each step would wait for it
def _tensor(numbers: tuple[float, ...], device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # training may use it, too
        return torch.tensor(numbers, dtype=torch.float32, device=device)
