"""How a model is trained and evaluated: `Method`, whose functions a method of your own replaces.

docs/methods.md has an example of each function.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seedbed.data.source import Batch
from seedbed.errors import InputError
from seedbed.names import did_you_mean

# A scalar, or a function that returns one: it is called in steps that are logged, and only there.
Value = Tensor | float | Callable[[], Tensor]
Make = Callable[..., torch.optim.Optimizer]


class Method:
    """How a model is trained and evaluated; by default to minimise the loss of the data's task.

    A method draws from the global generators, which are seeded before each of its functions, and
    keeps what lasts from step to step in the model: in parameters and buffers.

    Attributes:
        task: what `data.task` names (see `seedbed.tasks`), set before training; None for nothing.
        monitor: the value of a validation that best.pt and early stopping follow.
        mode: `min` or `max`: which of its values is the best.
    """

    task: Any = None
    output: str | int | None = None  # see `Supervised`
    monitor: str = "validation_loss"
    mode: str = "min"

    def configure_optimizers(
        self, model: nn.Module, make: Make
    ) -> torch.optim.Optimizer | Mapping[str, torch.optim.Optimizer]:
        """Return the optimizer, or several by name, in the order of their updates.

        Args:
            make: `make(parameters, **overrides)` makes the optimizer of the configuration, with
                other values of its options. Parameters are those of `named_parameters()`, or a list
                of groups, mappings with `params`, a `name` for metrics.csv and options of theirs.
        """
        return make(model.named_parameters())

    def updates(self, step: int, names: Sequence[str]) -> Sequence[str]:
        """Return which optimizers make an update in a step, in order; one may do so repeatedly.

        A pure function of the step.
        """
        return names

    def trainable(self, step: int) -> Iterable[str] | None:
        """Return patterns (`head.*`) of the parameters that a step trains; None: all of them.

        A pure function of the step.
        """
        return None

    def training_step(
        self, model: nn.Module, batch: Batch, optimizer: str
    ) -> Tensor | Mapping[str, Value]:
        """Return the loss, a scalar, of an optimizer's update; or a mapping with `loss` in it.

        Called for each update and each shard of the batch. Other values are logged by their names;
        a function without arguments is called only where it is logged. `weight` is not logged: it
        says what a shard counts in the mean over all shards, such as its number of tokens.

        Args:
            optimizer: the name of the optimizer whose parameters get gradients.
        """
        task, outputs, targets = self.task, self._outputs(model, batch), batch.targets
        loss = task.loss(outputs, targets)
        metric = {task.metric_name: lambda: task.metric(outputs, targets).mean()}
        return metric | {"loss": loss}  # whose metric may be called so, too

    def on_step_end(self, model: nn.Module, step: int) -> None:
        """Change the model after a step's updates, without gradients: averages, teachers."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Mapping[str, Any]:
        """Return what is kept of a batch of an evaluation, by name.

        That is a tensor with a first dimension, such as the loss of each sample, (B,), or a pair
        (sum, count) of scalars. Three names are taken: `predictions`, a number for each sample,
        goes to test_predictions.csv; `outputs`, anything, is hashed for the record, and metrics and
        callbacks are given it with `targets`, by default those of the batch.
        """
        task, outputs, targets = self.task, self._outputs(model, batch), batch.targets
        return {
            "loss": task.losses(outputs, targets),
            task.metric_name: task.metric(outputs, targets),
            "predictions": task.predictions(outputs),
            "outputs": outputs,
        }

    def compute(self, values: Mapping[str, Any]) -> Mapping[str, float]:
        """Return the values of an evaluation: by default the means over all samples.

        Args:
            values: what `validation_step` returned for all batches, by name: tensors one after the
                other, on the CPU and in the order of the samples, and pairs summed, as floats.
        """
        means = {}
        for name, value in values.items():
            # Sums are exact before their one rounding, in any order.
            pair = (math.fsum(value.tolist()), len(value)) if isinstance(value, Tensor) else value
            means[name] = pair[0] / (pair[1] or math.nan)
        return means

    def on_train_end(self, model: nn.Module, log: Callable[[str], None]) -> None:
        """Look at the trained model, in evaluation mode and without gradients.

        Args:
            log: prints a line, which train.log gets as well.
        """

    def _outputs(self, model: nn.Module, batch: Batch) -> Any:
        """Return what the task takes of a model's output: one tensor as float32."""
        outputs, name = model(batch.inputs), self.output
        if name is not None:
            by_name = hasattr(outputs, str(name))
            outputs = getattr(outputs, str(name)) if by_name else outputs[name]
        return outputs.float() if isinstance(outputs, Tensor) else outputs


class Supervised(Method):
    """Minimise the loss of the data's task, and follow its metric.

    Args:
        output: the part of what the model returns that the task takes, such as `logits`, or a
            place in a tuple; None: the whole.
    """

    def __init__(self, task: Any = None, output: str | int | None = None) -> None:
        self.task, self.output = task, output

    @property
    def monitor(self) -> str:  # type: ignore[override]
        return f"validation_{self.task.metric_name}"

    @property
    def mode(self) -> str:  # type: ignore[override]
        return "max" if self.task.higher_is_better else "min"


def require_hooks(key: str, made: object, base: type) -> None:
    """Refuse an object of another class, and a misspelt hook, on_..., that nobody would call."""
    if not isinstance(made, base):
        wanted, name = f"{base.__module__}.{base.__name__}", type(made).__name__
        raise InputError(f"{key}: expected a class that extends {wanted}, got {name}")
    known = [name for name in vars(base) if name.startswith("on_")]
    for name in dir(type(made)):
        if name.startswith("on_") and name not in known:
            raise InputError(
                f"{key}: expected hooks among {', '.join(known)}, got {type(made).__name__}.{name},"
                f" which is never called{did_you_mean(name, known)}"
            )


@dataclass(frozen=True)
class Seen:
    """What an evaluation saw of all samples, in their order and on the CPU.

    Attributes:
        phase: `validation` or `test`.
        outputs, targets: as `validation_step` returned them and the batches had them, with the
            tensors of all batches one after the other; lists of those that do not fit together.
        values: what `Method.compute` is given, by name: the loss of each sample, for instance.
    """

    phase: str
    outputs: Any
    targets: Any
    values: Mapping[str, Any]


@dataclass
class Run:
    """A run as callbacks see it."""

    model: nn.Module  # to read from
    folder: Path  # of the run, for files of the callback's own
    _show: Callable[[str, int, Path], None]  # takes name, step and file of a figure
    phase: str = "train"  # or `validation`, `test`
    step: int = 0
    optimizer: str = ""  # the name of the one whose update is made
    logs: bool = False  # whether what is logged now goes to metrics.csv
    logged: dict[str, Tensor | float] = field(default_factory=dict)

    def log(self, name: str, value: Tensor | float) -> None:
        """Log a scalar by a name: a column of metrics.csv."""
        if self.logs:
            self.logged[name] = value

    def log_figure(self, name: str, figure: Any) -> None:
        """Log a figure of matplotlib: a file in `figures/` of the run folder, and to loggers."""
        if self.logs:
            from seedbed.record import plots  # matplotlib takes a second

            path = self.folder / "figures" / f"{self.phase}_{name}_{self.step}.png"
            path.parent.mkdir(exist_ok=True)
            self._show(f"{self.phase}/{name}", self.step, plots.save(figure, path))


class Callback:
    """Looks at a run and changes none of its bits; one process of a run has callbacks.

    Each function is called without gradients, with the global generators seeded for it. What it
    changes in the model is refused. `callbacks.<name>` in the configuration names a class.
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
        """Look at what a validation, or the test at the end, saw.

        It is kept in memory and gathered from all processes where a callback has this function.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return what the checkpoint holds of the callback: tensors, numbers, texts."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from what `state_dict` returned."""
