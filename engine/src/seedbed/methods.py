"""How a model is trained and evaluated: `Method`, the base class of user-defined
methods.

docs/methods.md has an example of each function.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed import record, tasks
from seedbed.errors import InputError
from seedbed.names import did_you_mean
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Batch, Source
from seedbed.record import BY_LOSS, Monitor

__all__ = ["Callback", "Entry", "Method", "Run", "Seen", "Supervised"]

# A scalar, a pair (sum, count) of scalars, or a function that returns one and is called
# only in steps that are logged.
Scalar = Tensor | float
Value = Scalar | tuple[Scalar, Scalar] | Callable[[], Any]
Make = Callable[..., torch.optim.Optimizer]


class Method:
    """How a model is trained and evaluated; by default, it minimises the loss of the
    data's task.

    A method draws from the global generators, which are seeded before each of its
    functions, and keeps state that lasts from step to step in the model's parameters
    and buffers.

    Attributes:
        task: that of `data.task` (see `seedbed.tasks`), set before training; None if
        there is none.
        steps_per_epoch: set before training: steps 1 to `steps_per_epoch` are the first
        epoch.
        monitor: the validation value that says which weights are better: best.pt, early
            stopping and reports follow it, unless `trainer.monitor` names another.
        create_graph: whether gradients keep their graph, for optimizers that
        differentiate them.
        mode: `min` or `max`: whether the smallest or the largest value of `monitor` is
        the best.
    """

    task: Any = None
    steps_per_epoch: int = 0  # where nothing is trained
    output: str | int | None = None  # see `Supervised`
    monitor: str = "validation_loss"
    mode: str = "min"
    create_graph: bool = False

    def configure_optimizers(
        self, model: nn.Module, make: Make
    ) -> torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]:
        """Return the optimizer, or several by name, in the order of their updates.

        Args:
            make: `make(parameters, **overrides)` builds the optimizer of the
                configuration, with some options overridden. `parameters` are those of
                `named_parameters()`, or a list of groups: mappings with `params`, a
                `name` for metrics.csv and their own options.
        """
        return make(model.named_parameters())

    def updates(self, step: int, names: Sequence[str]) -> Sequence[str]:
        """Return the optimizers that update in a step, in order; one may be listed
        repeatedly.

        A pure function of the step.
        """
        return names

    def trainable(self, step: int) -> Iterable[str] | None:
        """Return patterns (`head.*`) of the parameters that a step trains; None for
        all.

        A pure function of the step.
        """
        return None

    def epoch_values(self, model: nn.Module, epoch: int) -> Mapping[str, Any]:
        """Return values for the training set or the sampler in an epoch, which is
        numbered from 0.

        Their `set_epoch_values(values)` gets them, in every process that loads samples,
        before any sample of the epoch. A function of the epoch and of the model's
        parameters and buffers, as they are after the epoch before; it changes nothing.
        Tensors, numbers, strings, and lists and dictionaries of them.
        """
        return {}

    def training_step(
        self, model: nn.Module, batch: Batch, optimizer: str
    ) -> Tensor | Mapping[str, Value]:
        """Return the scalar loss of an optimizer's update, or a mapping that contains
        `loss`.

        Called for each update and each shard of the batch. Other values are logged by
        their names; a function without arguments is called only if its value is logged.
        `weight` is not logged: it is the shard's weight in the mean over all shards,
        such as its number of tokens. A shard of weight 0 contributes nothing, whatever
        its loss. A logged value may be a pair (sum, count), to be summed over the
        shards and divided.

        Args:
            optimizer: the name of the optimizer whose parameters get gradients.
        """
        task = self.task
        targets = batch.targets
        outputs = self._outputs(model, batch)
        loss, weight = tasks.loss_of(task, outputs, targets)

        def metric() -> Any:
            values = tasks.values_of(
                task, "metric", task.metric(outputs, targets), targets
            )
            if isinstance(values, Tensor):
                return values.mean()
            sums, weights = values
            return sums.mean(), weights.mean()

        values: dict[str, Value] = {task.metric_name: metric}
        if weight is not None:
            values["weight"] = weight
        return values | {"loss": loss}  # the task's metric may be named `loss`, too

    def on_step_end(self, model: nn.Module, step: int) -> None:
        """Change the model after a step's updates, without gradients, e.g. averages or
        teachers."""

    def on_evaluation_start(
        self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        """Swap in the weights to evaluate, such as averages: before each validation and
        test.

        best.pt holds them, too. Afterwards the engine restores the model's weights and
        buffers.
        """

    def on_evaluation_end(
        self, model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer]
    ) -> None:
        """Undo what `on_evaluation_start` changed in the optimizers or in the
        method."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return the values of one batch of an evaluation, by name.

        Each is a tensor with a number for each sample, (B,), or a pair (sum, count),
        both scalars or, where a sample's weight is not 1, both (B,): values times
        weights, and weights. So a method that changes a value of
        `super().validation_step` takes both if its task has weights. If `compute` is
        overridden, also any other tensor with a first dimension. Three names are
        reserved: `predictions`, up to 100 numbers for each sample, (B, ...), go to
        test_predictions.csv; `outputs`, of any type, is hashed for the record and
        passed to metrics and callbacks together with `targets`, by default those of the
        batch.
        """
        task = self.task
        targets = batch.targets
        outputs = self._outputs(model, batch)
        losses = task.losses(outputs, targets)
        metric = task.metric(outputs, targets)
        return {
            "loss": tasks.plain(tasks.values_of(task, "loss", losses, targets)),
            task.metric_name: tasks.plain(
                tasks.values_of(task, "metric", metric, targets)
            ),
            "predictions": task.predictions(outputs),
            "outputs": outputs,
        }

    def predict_step(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return `outputs` and `predictions` of samples, as `validation_step`, without
        targets.

        `predict.py` and `seedbed.predict` call it. The targets of the batch are 0 where
        a data set has none. A method with a `validation_step` of its own needs one of
        these, too.
        """
        if (
            self.task is None
            or type(self).validation_step is not Method.validation_step
        ):
            raise InputError(
                "method: expected a predict_step, since there is no task or"
                f" validation_step is overridden, got none in {type(self).__name__};"
                " return outputs and predictions"
            )
        outputs = self._outputs(model, batch)
        return {"outputs": outputs, "predictions": self.task.predictions(outputs)}

    def compute(self, values: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the values of an evaluation: by default the (weighted) means over all
        samples.

        Args:
            values: the values of `validation_step` over all batches, by name: tensors
                concatenated on the CPU, in the order of the samples, (N,), and pairs of
                scalars summed, as floats. A pair (B,) is a pair (N,) if a weight is not
                1, and else its values alone.
        """
        return {name: mean(value) for name, value in values.items()}

    def on_train_end(self, model: nn.Module, log: Callable[[str], None]) -> None:
        """Look at the trained model, in evaluation mode and without gradients.

        `log` prints a line and writes it to train.log.
        """

    def _outputs(self, model: nn.Module, batch: Batch) -> Any:
        """Return the part of the model's output that the task takes; a tensor as
        float32."""
        outputs = model(batch.inputs)
        name = self.output
        if outputs is None:
            raise InputError(
                f"model: expected outputs from forward of {type(model).__name__}, got"
                " None; end it with a return"
            )
        if name is not None:
            by_name = hasattr(outputs, str(name))
            outputs = getattr(outputs, str(name)) if by_name else outputs[name]
        return outputs.float() if isinstance(outputs, Tensor) else outputs


class Supervised(Method):
    """Minimises the loss of the data's task and monitors its metric.

    `output` is the part of the model's output that the task takes: a name, such as
    `logits`, or an index into a tuple; None for the whole output.
    """

    def __init__(self, task: Any = None, output: str | int | None = None) -> None:
        self.task = task
        self.output = output

    @property
    def monitor(self) -> str:  # type: ignore[override]
        return f"validation_{self.task.metric_name}" if self.task else "validation_loss"

    @property
    def mode(self) -> str:  # type: ignore[override]
        return "max" if self.task and self.task.higher_is_better else "min"


def mean(value: Any) -> float:
    """Return the mean of a value of `Method.compute`, or NaN of none."""

    def total(part: Any) -> float:
        # `fsum` is exact before its one rounding, so the order does not matter.
        return math.fsum(part.tolist()) if isinstance(part, Tensor) else part

    sums, counts = (value, len(value)) if isinstance(value, Tensor) else value
    return total(sums) / (total(counts) or math.nan)


def require_hooks(key: str, made: object, base: type) -> None:
    """Raise InputError if `made` is not a `base` or has a hook (on_...) that is never
    called."""
    if not isinstance(made, base):
        wanted = f"{base.__module__}.{base.__name__}"
        name = type(made).__name__
        raise InputError(f"{key}: expected a class that extends {wanted}, got {name}")
    known = [name for name in vars(base) if name.startswith("on_")]
    for name in dir(type(made)):
        if name.startswith("on_") and name not in known:
            raise InputError(
                f"{key}: expected hooks among {', '.join(known)}, got"
                f" {type(made).__name__}.{name}, which is never"
                f" called{did_you_mean(name, known)}"
            )


@dataclass(frozen=True)
class Seen:
    """The outputs, targets and values of an evaluation, on the CPU and in the order of
    the samples.

    Outputs and targets are those of `validation_step` (or the batches' targets),
    concatenated over all batches; a list with one item per batch where they cannot be
    concatenated.
    """

    phase: str  # `validation` or `test`
    outputs: Any
    targets: Any
    # the argument of `Method.compute`: e.g. the loss of each sample
    values: Mapping[str, Any]
    # (N,)
    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    epoch: float = 0.0  # at which the weights were evaluated, as in metrics.csv
    dataset: Any = None  # whose indices the ids are
    _source: Source | None = field(default=None, repr=False)

    def inputs(self, ids: Sequence[int] | Tensor) -> Any:
        """Return the inputs of some samples, collated on the CPU, as the model has seen
        them.

        They are loaded again, so that no evaluation keeps all of them in memory.
        """
        assert self._source is not None  # it is None outside of a run
        wanted = np.array([int(each) for each in ids], dtype=np.int64)
        return self._source[Position(0, wanted)].inputs


@dataclass(frozen=True)
class Entry:
    """A row of metrics.csv: values by `phase/column`, such as `train/loss`, after a
    step."""

    step: int
    values: dict[str, float]

    @classmethod
    def of_row(cls, row: Mapping[str, object]) -> "Entry":
        """Convert a row of metrics.csv, before it is written or after it is read."""
        filled = {
            name: str(cell)
            for name, cell in row.items()
            if name not in ("step", "phase")
        }
        values = {
            f"{row['phase']}/{name}": float(text)
            for name, text in filled.items()
            if text
        }
        return cls(int(str(row["step"])), values)


@dataclass
class Run:
    """A run as callbacks and loggers see it."""

    folder: Path  # of the run, also for a callback's own files
    settings: Mapping[str, Any]  # the resolved configuration
    monitor: Monitor = BY_LOSS  # the value that best.pt follows
    # read-only; empty for loggers
    model: nn.Module = field(default_factory=nn.Identity)
    # Takes name, step and file of a figure.
    _show: Callable[[str, int, Path], None] = lambda *_: None
    # by split; none for loggers
    _sources: Mapping[str, Source] = field(default_factory=dict)
    steps_per_epoch: int = 1
    phase: str = "train"  # or `validation`, `test`
    step: int = 0
    optimizer: str = ""  # the name of the one that updates
    logs: bool = False  # whether values logged now go to metrics.csv
    logged: dict[str, Tensor | float] = field(default_factory=dict)

    @property
    def epoch(self) -> float:
        """The epochs so far, as in metrics.csv: 1.0 after the last step of the first
        one."""
        return self.step / self.steps_per_epoch

    @property
    def history(self) -> list[Entry]:
        """The rows of metrics.csv so far; of a resumed run, up to its checkpoint.

        An earlier process may have logged them, and later rows that will come again.
        """
        is_there = (self.folder / "metrics.csv").is_file()
        return list(
            map(Entry.of_row, record.read_metrics(self.folder) if is_there else ())
        )

    def log(self, name: str, value: Tensor | float) -> None:
        """Log a scalar under a name, its column in metrics.csv."""
        if self.logs:
            self.logged[name] = value

    def log_figure(self, name: str, figure: Any) -> None:
        """Save a matplotlib figure in `figures/` of the run folder, and pass it to the
        loggers."""
        if self.logs:
            from seedbed.record import plots  # matplotlib takes a second

            path = self.folder / "figures" / f"{self.phase}_{name}_{self.step}.png"
            path.parent.mkdir(exist_ok=True)
            self._show(f"{self.phase}/{name}", self.step, plots.save(figure, path))


class Callback:
    """Observes a run without changing a bit of it; called in one process of the run
    only.

    Each function is called without gradients, with the global generators seeded for it.
    A change to the model or gradients raises InputError. `callbacks.<name>` in the
    config names the class.
    """

    def on_before_optimizer_step(
        self, run: Run, step: int, gradients: Mapping[str, Tensor]
    ) -> None:
        """Look at the gradients of an update by parameter, before they are clipped."""

    def on_step_end(self, run: Run, step: int) -> None:
        """Look at the model after a step."""

    def on_validation_end(self, run: Run, step: int) -> None:
        """Look at the model, in evaluation mode, after a validation."""

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        """Look at the samples and outputs of a validation, or of the test at the end.

        Outputs and targets are kept in memory, and gathered from all ranks, only if a
        callback overrides this.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state for checkpoints: tensors, numbers, strings."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
