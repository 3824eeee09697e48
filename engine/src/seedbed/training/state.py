"""The state of training, its plan and progress, and the results of steps and
evaluations."""

import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import filter
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from seedbed import tasks
from seedbed.config.settings import Plateau, Trainer
from seedbed.errors import InputError
from seedbed.methods import Method, Seen
from seedbed.pipeline.source import Batch
from seedbed.record import BY_LOSS, Monitor
from seedbed.training.callbacks import Callbacks
from seedbed.training.scaling import Unscaled
from seedbed.training.whole import WholeWeights


class Update(NamedTuple):
    """One optimizer update of a step."""

    step: int
    number: int  # its index among the method's updates, from 0
    optimizer: str  # the name of its optimizer
    parameters: Mapping[str, nn.Parameter]  # those that it trains, by name


class Passes(NamedTuple):
    """The results of forward and backward passes."""

    gradients: list[Tensor]  # zeros for a parameter that no sample used
    # scalars by name, the loss first, the weight last; pairs are (2,)
    values: dict[str, Tensor]
    used: list[bool]  # per parameter: optimizers skip those without a gradient


@dataclass
class TrainingState:
    """The model, optimizers and method of a run, with the settings that steps need."""

    model: nn.Module
    # by name, in the order of their updates
    optimizers: Mapping[str, torch.optim.Optimizer]
    method: Method
    device: torch.device
    # the precision of operations; None: that of their inputs
    autocast: torch.dtype | None = None
    scaler: Unscaled = field(default_factory=Unscaled)
    channels_last: bool = False
    gradient_clip_norm: float | None = None
    dropout_seed: int | None = 0  # None: global generators are not seeded
    strict: bool = False  # nondeterminism is an error
    monitor: Monitor = BY_LOSS  # says which weights are better
    callbacks: Callbacks = field(default_factory=Callbacks)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    # or `distributed.Sharding`
    sharding: WholeWeights = field(default_factory=WholeWeights)
    # raises InputError if code changed a flag
    require_flags: Callable[[], None] = lambda: None
    outputs: int | None = None  # `data.outputs`, if it is a number: that of classes
    graphs: Any = None  # `graphs.Graphs`, which takes the passes of slices

    def __post_init__(self) -> None:
        groups = [g for each in self.optimizers.values() for g in each.param_groups]
        # As built: some optimizers and the schedule change options later.
        self.options = [
            {k: repr(v) for k, v in g.items() if k != "params"} for g in groups
        ]

    @cached_property
    def _checks_targets(self) -> bool:
        """Whether targets go to a task that says which it takes, and to nothing
        else."""
        changes = any(map(self.overrides, ("training_step", "validation_step")))
        return not changes and tasks.takes_checked_targets(self.method.task)

    def require_targets(self, batch: Batch) -> None:
        """Raise InputError for targets that the task does not take; to be called on the
        CPU."""
        if self._checks_targets:
            whose = "training" if self.model.training else "evaluation"
            tasks.require_targets(
                self.method.task, batch.ids, batch.targets, self.outputs, whose
            )

    def autocasting(self) -> torch.autocast:
        """Return the context of forward passes."""
        return torch.autocast(
            self.device.type, self.autocast, enabled=self.autocast is not None
        )

    @property
    def reads_to(self) -> torch.device:
        """The device for checkpoints: a GPU's memory may not hold the whole of a
        sharded model."""
        return torch.device("cpu") if self.sharding.is_sharded else self.device

    def monitored(self, values: Mapping[str, float]) -> float:
        """Return the monitored value of a validation; raise InputError if there is
        none."""
        if self.monitor.name in values:
            return values[self.monitor.name]
        known = ", ".join(f"validation_{each}" for each in values)
        raise InputError(
            "trainer.monitor: expected a value of"
            f" {type(self.method).__name__}.validation_step, got {self.monitor.metric};"
            f" it returns {known or 'none'}"
        )

    @cached_property
    def parameters_of(self) -> Mapping[str, Mapping[str, nn.Parameter]]:
        """The parameters of each optimizer by name, in the order of the model."""
        parameters: dict[str, dict[str, nn.Parameter]] = {}
        for name, optimizer in self.optimizers.items():
            taken = {id(p) for group in optimizer.param_groups for p in group["params"]}
            named = self.model.named_parameters()
            parameters[name] = {path: p for path, p in named if id(p) in taken}
        return parameters

    @cached_property
    def to_train(self) -> Mapping[str, nn.Parameter]:
        """The parameters of all optimizers that required gradients at first, by
        name."""
        named = (pair for each in self.parameters_of.values() for pair in each.items())
        return {name: p for name, p in named if p.requires_grad}

    @cached_property
    def without_gradient(self) -> dict[str, bool]:
        """The parameters that have got no gradient so far, and whether an update asked
        for one."""
        return dict.fromkeys(self.to_train, False)

    def note_gradients(self, update: Update, used: Iterable[bool]) -> None:
        """Note which parameters of an update got a gradient; nothing is read from the
        device."""
        waiting = self.without_gradient
        if not waiting:  # the usual case, from the second step on
            return
        for name, has_gradient in zip(update.parameters, used, strict=True):
            if has_gradient:
                waiting.pop(name, None)
            elif name in waiting:
                waiting[name] = True

    @cached_property
    def takes_all(self) -> Mapping[str, bool]:
        """Whether each optimizer has all parameters that require gradients."""
        named = self.model.named_parameters()
        needed = self.to_train.keys() | {name for name, p in named if p.requires_grad}
        return {
            name: needed <= each.keys() for name, each in self.parameters_of.items()
        }

    @cached_property
    def needs_closure(self) -> Mapping[str, bool]:
        """Whether each optimizer's `step` requires a closure that repeats the
        passes."""
        needs: dict[str, bool] = {}
        for name, optimizer in self.optimizers.items():
            closure = inspect.signature(optimizer.step).parameters.get("closure")
            needs[name] = closure is not None and closure.default is closure.empty
        return needs

    def trained_by(self, step: int) -> Container[str]:
        """Return the names of the parameters that the method trains in a step."""
        patterns = self.method.trainable(step)
        if patterns is None:
            return self.to_train
        return matching("method.trainable", tuple(self.to_train), tuple(patterns))

    def updates(self, step: int) -> list[Update]:
        """Set `requires_grad` of the parameters for a step; return its updates, in
        order.

        An update whose parameters are all frozen is left out.
        """
        if self.overrides("trainable"):
            trained = self.trained_by(step)
            for name, parameter in self.to_train.items():
                parameter.requires_grad_(name in trained)
        for named in self.parameters_of.values():
            for parameter in named.values():
                if not parameter.requires_grad:
                    # or the optimizer would reuse the last one in every step
                    parameter.grad = None
        updates = []
        for number, name in enumerate(self.method.updates(step, list(self.optimizers))):
            named = {
                n: p for n, p in self.parameters_of[name].items() if p.requires_grad
            }
            updates += [Update(step, number, name, named)] if named else []
        if not updates:
            raise InputError(
                f"method: expected parameters to train in step {step}, got none"
            )
        return updates

    def overrides(self, function: str) -> bool:
        """Return whether the method overrides a function of `Method`."""
        return getattr(type(self.method), function) is not getattr(Method, function)


@lru_cache(maxsize=4)  # most steps train the same parameters as the one before
def matching(
    key: str, names: tuple[str, ...], patterns: tuple[str, ...]
) -> frozenset[str]:
    """Return the names that match patterns (`head.*`); raise InputError if one matches
    none."""
    for pattern in patterns:
        if not filter(names, pattern):
            near = get_close_matches(pattern, names, n=4, cutoff=0.0)
            raise InputError(
                f"{key}: expected a pattern of {', '.join(near)}, ..., got {pattern!r}"
            )
    return frozenset(name for pattern in patterns for name in filter(names, pattern))


class StepResult(NamedTuple):
    """The results of a step, on the device and not synchronised."""

    loss: Tensor  # of the whole batch, in the step's last update
    values: dict[str, Tensor] | None  # scalars by name, if requested
    stages: Tensor | None  # fingerprints for `fingerprint.rows`, if requested


@dataclass(frozen=True)
class Plan:
    """When things happen, in steps and epochs; 0 means never."""

    total_steps: int
    steps_per_epoch: int
    trainer: Trainer
    fingerprint_every_steps: int
    learning_rate_factor: Callable[[int], float | Mapping[str, float]]
    # the first steps, whose fingerprints are compared with a rehearsal's
    compared_steps: int = 0
    last_step: int | None = None  # of a replay that is to stop there, in all processes
    plateau: Plateau | None = None  # schedule=plateau
    # where a replay starts a new best, as resumes did
    new_best_steps: Container[int] = ()
    # of a replay: those of the record's chain, whatever its settings say
    kept_steps: Container[int] = ()

    def validates_after(self, step: int) -> bool:
        epoch, rest = divmod(step, self.steps_per_epoch)
        every = self.trainer.validate_every_epochs
        every_steps = self.trainer.validate_every_steps
        if step == self.total_steps or (
            every_steps and step and step % every_steps == 0
        ):
            return True
        return bool(every and epoch and not rest and epoch % every == 0)

    def keeps(self, step: int) -> bool:
        """Return whether the checkpoint of a step is kept in a file of its own."""
        every_steps = self.trainer.keep_checkpoint_every_steps
        is_due = bool(step and every_steps and step % every_steps == 0)
        return is_due or (step in self.kept_steps and step < self.total_steps)

    def saves(self, step: int) -> bool:
        """Return whether a step ends with a checkpoint, which the next one replaces."""
        is_due = self.is_due(self.trainer.checkpoint_every_steps, step)
        return is_due and step < self.total_steps and not self.keeps(step)

    def hashes(self, step: int) -> bool:
        """Return whether a step has fingerprints."""
        return (
            self.is_due(self.fingerprint_every_steps, step)
            or step <= self.compared_steps
        )

    def replays(self, step: int) -> bool:
        """Return whether a step is taken twice and compared."""
        every_steps = self.trainer.replay_every_steps
        return bool(every_steps) and step % every_steps == 0

    def writes(self, step: int) -> bool:
        """Return whether what was logged is read from the device and written after a
        step."""
        return self.is_due(self.trainer.log_every_steps, step) or step % 100 == 0

    def logs(self, step: int) -> bool:
        """Return whether a step has a row in metrics.csv."""
        return self.is_averaged(step) or self.is_due(self.trainer.log_every_steps, step)

    def is_averaged(self, step: int) -> bool:
        """Return whether a step's named values count in the means of its epoch.

        The last step of an epoch does, so that each epoch has some. The last step of a
        run may not: a longer run does not log it.
        """
        every_steps = self.trainer.log_every_steps
        return bool(every_steps) and (step % every_steps == 0 or self.ends_epoch(step))

    def ends_epoch(self, step: int) -> bool:
        return step % self.steps_per_epoch == 0

    def is_due(self, every_steps: int, step: int) -> bool:
        """Return whether an action every `every_steps` steps, and in the last one, is
        due now."""
        return bool(every_steps) and (
            step % every_steps == 0 or step == self.total_steps
        )

    def is_over(self, progress: "Progress") -> bool:
        patience = self.trainer.early_stopping_patience
        stale = patience is not None and progress.validations_without_gain >= patience
        return stale or progress.step == self.total_steps


@dataclass
class Progress:
    """The progress of a run, which checkpoints hold along with its training state."""

    step: int = 0
    validated_step: int = 0
    best_step: int = 0
    best_metric: float | None = None
    best_sha256: str | None = None  # of the best weights, once they are saved
    monitor: Monitor | None = None  # what the best metric is of
    validations_without_gain: int = 0
    seconds: float = 0.0
    # of `schedules.note_validation`
    plateau: dict[str, float] = field(default_factory=dict)
    # of the first validation; all have the same samples
    samples_hash: int | None = None
    # those before changes that were allowed, until compared
    samples_before: int | None = None
    # `samples`, hash of `targets`, and of how many `inputs` a sample is a tuple
    validation_set: dict[str, Any] = field(default_factory=dict)
    # The `epoch` and the `values` of `training.epochs`, for the epoch that is being
    # trained.
    given: dict[str, Any] = field(default_factory=dict)
    # of the last checkpoint that is part of the chain (`record.chain`)
    kept_step: int = 0

    def step_that_counts(self, test_weights: str) -> int:
        """Return the step of the weights that `trainer.test_weights` selects so far."""
        return (
            self.best_step if test_weights == "best" and self.best_step else self.step
        )

    def note_validation(self, metric: float, monitor: Monitor) -> bool:
        """Return whether a monitored value is the best so far."""
        self.monitor = monitor
        self.validated_step = self.step
        is_best = monitor.improves(metric, self.best_metric)
        if is_best:
            self.best_metric = metric
            self.best_step = self.step
            self.best_sha256 = None
        self.validations_without_gain = (
            0 if is_best else self.validations_without_gain + 1
        )
        return is_best

    @property
    def is_best(self) -> bool:
        """Whether the last weights are the best so far."""
        return self.best_step == self.step and self.best_metric is not None

    def forget_best(self) -> None:
        """Start a new best value, early-stopping count and plateau; these weights may
        be the best.

        If they were validated, they are so again.
        """
        if self.validated_step == self.step:
            self.validated_step = self.step - 1
        self.best_step = 0
        self.best_metric = None
        self.best_sha256 = None
        self.monitor = None
        self.validations_without_gain = 0
        self.plateau = {}


@dataclass(frozen=True)
class Evaluation:
    """The results on a data set, on the CPU and in the order of the samples."""

    values: dict[str, float]  # of `Method.compute` and metrics, by name
    predictions: Tensor | None  # (N, K), if the method returns any
    probabilities: Tensor | None  # (N, C), if the task has them and they were asked for
    targets: Tensor  # (N, K), or the first number of each, (N, 1)
    output_hashes: Tensor  # one per batch, see `evaluate.Row`: int64 (batches,)
    samples_hash: int  # of all inputs and targets
    seen: Seen | None = None  # for callbacks, if one needs it
    has_labels: bool = True  # false if the losses of all samples weigh 0
