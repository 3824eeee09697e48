"""Checks before the first step, and the diagnosis of non-finite losses and failed
rehearsals.

A batch is a function of its step, so it can be loaded again, as initial weights can be
built again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import assemble, methods, tasks
from seedbed.assemble import sources
from seedbed.assemble.sources import evaluation_batches
from seedbed.errors import InputError
from seedbed.methods import Method
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.streams import StreamSource
from seedbed.pipeline.tensors import tensors_of
from seedbed.run.trial import STEPS
from seedbed.training import checkpoint
from seedbed.training.callbacks import Callbacks
from seedbed.training.evaluate import evaluating, measure, of_all_samples, values_of
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import seed_draws, to_device, train_step

_MOST_STEPS = 200  # for which `Method.trainable` is checked


def preflight(parts: assemble.Parts, log: Callable[[str], None]) -> None:
    """Check before the first step for errors that would otherwise show hours later, or
    never."""
    training = parts.training
    last = parts.plan.total_steps
    _warn_of_untrained_parameters(training, log)
    if training.overrides("trainable"):
        for step in {*range(1, last, -(-last // _MOST_STEPS)), last}:
            training.trained_by(step)
    held_out = parts.sources["validation"]
    batch = list(
        evaluation_batches(parts.settings, held_out, Shards(), training.device, 1)
    )
    gathered = parts.shards.gather(lambda: measure(training, batch, Shards()))
    rows = [row for each in gathered for row in each]
    joined = of_all_samples(rows)
    if (line := differing_losses(training, batch[0], joined.get("loss"))) is not None:
        log(line)
    try:
        values = values_of(training, rows)
        training.monitored(values)
    except InputError:
        raise
    except Exception:  # some metrics are undefined for a single batch
        values = {}
    _require_known_objective(training, parts.settings.objective, values)


def _warn_of_untrained_parameters(
    training: TrainingState, log: Callable[[str], None]
) -> None:
    needed = [name for name, p in training.model.named_parameters() if p.requires_grad]
    if left_out := [name for name in needed if name not in training.to_train]:
        log(
            f"warning: optimizer: {len(left_out)} of {len(needed)} parameters that need"
            " gradients are in no optimizer and are never trained, such as"
            f" {left_out[0]}; give them to one, or freeze them by requires_grad_(False)"
        )


def _require_known_objective(
    training: TrainingState, objective: str | None, values: Mapping[str, float]
) -> None:
    """Raise InputError if an evaluation by the task, of these values, has none of the
    objective's name."""
    if not values or (
        training.overrides("validation_step") or training.overrides("compute")
    ):
        return
    known = [f"{phase}_{name}" for phase in ("validation", "test") for name in values]
    known += ["last_train_loss", *(f"last_{each}" for each in known)]
    if objective is not None and objective not in known:
        raise InputError(
            f"objective: expected one of {', '.join(known)}, got {objective}"
        )


def differing_losses(
    training: TrainingState, batch: Batch, evaluated: Any
) -> str | None:
    """Return a warning if training minimises another loss than the evaluation of a
    batch reports.

    A task's own `loss` is compared, and the training step of a method that overrides
    both steps for one optimizer; in evaluation mode, without gradients and with the
    same draws.

    Args:
        evaluated: the value of `loss` of `Method.validation_step`, if there is one.
    """
    method = training.method
    task = training.method.task
    has_steps = training.overrides("training_step") and training.overrides(
        "validation_step"
    )
    has_loss = tasks.has_own_loss(task) and not tasks.is_built_in(type(task).loss)
    is_task = has_loss and not training.overrides("validation_step")
    is_simple = len(training.optimizers) == 1 and not training.sharding.is_sharded
    is_mean = isinstance(evaluated, tuple) or (
        isinstance(evaluated, Tensor) and evaluated.dim() == 1
    )
    if not is_mean or not is_simple or not (has_steps or is_task):
        return None
    trained = _loss_in_evaluation_mode(training, batch, has_steps)
    if trained is None:
        return None
    mean = methods.mean(evaluated)
    if math.isclose(trained, mean, rel_tol=1e-4, abs_tol=1e-6):
        return None
    advice = (
        "compute both from one function, or give that of validation_step another name"
    )
    names = "method", f"{type(method).__name__}.training_step", "validation_step"
    if not has_steps:
        name = type(task).__name__
        names = "data.task", f"{name}.loss", f"the mean of {name}.losses"
        advice = (
            "override losses (and loss_weights) and leave out loss, which is their mean"
        )
    key, of_training, of_evaluation = names
    return (
        f"warning: {key}: {of_training} gives {trained:.6g} for the first"
        f" {len(batch.ids)} validation samples, {of_evaluation} {mean:.6g}, in"
        " evaluation mode: training minimises another loss than evaluations report;"
        f" {advice}"
    )


def _loss_in_evaluation_mode(
    training: TrainingState, batch: Batch, is_own_step: bool
) -> float | None:
    """Return the loss by the training step of the method, or by the default one; None
    if that fails."""
    method = training.method
    batch = to_device(batch, training)
    seed_draws(training, 0, int(batch.ids[0]))
    with (
        torch.no_grad(),
        checkpoint.kept(training.model),
        evaluating(training.model, True),
    ):
        try:
            with training.autocasting():
                step = (
                    method.training_step
                    if is_own_step
                    else partial(Method.training_step, method)
                )
                returned: Any = step(
                    training.model, batch, next(iter(training.optimizers))
                )
            return float(
                returned["loss"] if isinstance(returned, Mapping) else returned
            )
        # such as one that needs gradients, or batches of training_collate
        except Exception:
            return None


class NotFinite(InputError):
    """A number is not finite; `phase` and `step` locate the evaluation or step of a
    loss."""

    def __init__(self, message: str, phase: str = "", step: int = 0) -> None:
        super().__init__(message)
        self.phase = phase
        self.step = step


def explained(error: NotFinite, parts: assemble.Parts) -> InputError:
    """Return an error that names the cause if repeating the work finds it, else
    `error`."""
    if parts.shards.is_sharded:  # this process has a part of the weights
        return error
    try:
        _repeat(parts, error.phase, error.step)
    except NotFinite as cause:
        return cause
    # user code may fail the second time; a second model may not fit in memory
    except Exception:
        pass
    return error


def _repeat(parts: assemble.Parts, phase: str, step: int) -> None:
    """Repeat a step or the validation after it, if possible; raise NotFinite for the
    cause."""
    # A new one: loader workers may share what the other data set opened.
    source = sources.build_sources(parts.settings)[phase]
    if given := parts.sources[phase].epoch_values:
        source.set_epoch_values(given)
    if phase == "validation":
        _repeat_validation(parts, source, step)
    # a stream would be read from its beginning
    elif step == 1 or not isinstance(source, StreamSource):
        _repeat_step(parts, source, step)


def _repeat_validation(parts: assemble.Parts, source: Source, step: int) -> None:
    settings = parts.settings
    training = parts.training
    where = f"the validation after step {step}"
    most = settings.trainer.limit_validation_batches
    loaded = evaluation_batches(settings, source, Shards(), training.device, most)
    batches = (_finite("data.validation", batch, where) for batch in loaded)
    if not all(p.isfinite().all() for p in training.model.parameters()):
        for _ in batches:  # looks at all of them
            pass
        # A sample without a label can leave a finite loss and ruin the weights.
        if step:
            _require_finite_samples(parts, step)
        return
    with _watched(
        training.model, f"{where}, of finite samples and with finite weights"
    ):
        rows = measure(replace(training, callbacks=Callbacks()), batches, Shards())
    losses = of_all_samples(rows)["loss"]
    sums = losses[0] if isinstance(losses, tuple) else losses  # times their weights
    _require_finite_losses(enumerate(sums.tolist()), where)


def _repeat_step(parts: assemble.Parts, source: Source, step: int) -> None:
    where = f"step {step}"
    shards = Shards(parts.shards.count)
    positions = list(shards.divide(parts.positions(step - 1, step)))
    # looks at all of them
    slices = [_finite("data.train", source[position], where) for position in positions]
    # A sample without a label can leave a finite loss and ruin the weights.
    if step > 1:
        _require_finite_samples(parts, step - 1)
    if step == 1:
        again = _built_again(parts, source)
        with _watched(again.model, "the first forward pass, before any update"):
            train_step(
                replace(again, callbacks=Callbacks()), slices, 1, shards, False, None
            )
    if not isinstance(source, StreamSource):
        again = _built_again(parts, source)
        singles = (
            position.cut(n, n + 1)
            for position in positions
            for n in range(len(position.ids))
        )
        losses = (
            (int(position.ids[0]), _loss(again, source[position]))
            for position in singles
        )
        _require_finite_losses(losses, f"{where}, with the initial weights, too")


def _built_again(parts: assemble.Parts, source: Source) -> TrainingState:
    return assemble.build_training_state(
        parts.settings,
        parts.training.device,
        lambda: source,
        steps_per_epoch=parts.plan.steps_per_epoch,
    )


def _require_finite_samples(parts: assemble.Parts, step: int) -> None:
    """Raise NotFinite if the training batch of a step contains a NaN or +inf."""
    source = sources.build_sources(parts.settings)["train"]
    if isinstance(source, StreamSource):  # it would be read from its beginning
        return
    if given := parts.sources["train"].epoch_values:
        source.set_epoch_values(given)
    for position in Shards(parts.shards.count).divide(parts.positions(step - 1, step)):
        _finite("data.train", source[position], f"step {step}")


@torch.no_grad()
def _loss(training: TrainingState, batch: Batch) -> float:
    training.model.eval()  # batch normalisation needs several samples otherwise
    batch = to_device(batch, training)
    name = next(iter(training.optimizers))
    with _watched(training.model, "a forward pass with the initial weights"):
        returned: Any = training.method.training_step(training.model, batch, name)
    return float(returned["loss"] if isinstance(returned, Mapping) else returned)


def _require_finite_losses(losses: Iterable[tuple[int, float]], where: str) -> None:
    """Raise NotFinite for samples whose loss is not finite, although all that it
    depends on is."""
    if bad := {sample: loss for sample, loss in losses if not math.isfinite(loss)}:
        samples = ", ".join(map(str, [*bad][:3])) + (", ..." if len(bad) > 3 else "")
        raise NotFinite(
            f"loss: expected a finite number, got {next(iter(bad.values()))} of finite"
            f" outputs for sample {samples} in {where}; look at targets that the loss"
            " cannot reach (CTC: zero_infinity=True)"
        )


def _finite(key: str, batch: Batch, where: str) -> Batch:
    """Return the batch; raise NotFinite if it contains a NaN or +inf, naming the
    first."""
    for name, nest in (("inputs", batch.inputs), ("targets", batch.targets)):
        if bad := _first_bad(nest):
            value, (sample, *index), count = bad
            at = (
                f" in column {index[0]}"
                if len(index) == 1
                else f" at {index}"
                if index
                else ""
            )
            of = (
                f" of sample {int(batch.ids[sample])}"
                if count == len(batch.ids)
                else ""
            )
            raise NotFinite(
                f"{key}: expected finite {name}, got {value}{at}{of}, in {where};"
                " correct these samples, or leave them out"
            )
    return batch


@contextmanager
def _watched(model: nn.Module, where: str) -> Iterator[None]:
    """Raise NotFinite for the first module with a NaN or +inf in its output."""

    def look(path: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        if bad := _first_bad(output):
            raise NotFinite(
                f"{f'model.{path}' if path else 'model'}: expected finite outputs of"
                f" {type(module).__name__}, got {bad[0]} in {where}; look for"
                " divisions, logarithms and roots there, and at its weights"
            )

    modules = model.named_modules()
    hooks = [
        module.register_forward_hook(partial(look, path)) for path, module in modules
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _first_bad(nest: Any) -> tuple[float, list[int], int] | None:
    """Return the first NaN or +inf (masks consist of -inf), its index, and its tensor's
    rows."""
    for tensor in filter(Tensor.is_floating_point, tensors_of(nest)):
        numbers = tensor.detach().reshape(tensor.shape or (1,))
        for index in (numbers.isnan() | numbers.isposinf()).nonzero()[:1].tolist():
            return float(numbers[tuple(index)]), index, len(numbers)
    return None


_UNREPEATED = (
    "draw from the global generators, and look for files that a step changes, memory"
    " that nothing wrote (torch.empty), a nondeterministic kernel or faulty hardware"
)


def refusal(stage: str, notes: Mapping[str, Any]) -> str:
    """Return the error line for a stage that differs in a resumed run, with that run's
    notes."""
    key, remedy = WHERE[stage]
    finding = f"a run that is resumed after step 1 differs in step 2 ({stage})"
    if stage.startswith(("validation", "test")):
        finding = (
            f"evaluations differ ({stage}) in a second pass, in another order, with"
            " another number of loader workers or in a resumed run"
        )
    changed = ", ".join(notes.get("changed", ())[:3])
    hint = f" (a step changes {changed})" if changed else ""
    return (
        f"{key}: resume check failed: {finding}{hint}; {remedy}. Where nothing lasts:"
        f" {_UNREPEATED}. Or set determinism.on_nondeterministic=warn"
    )


def not_repeated(stage: str, step: int = STEPS) -> str:
    """Return the error line for a step that does not repeat, whether resumed or not."""
    return (
        f"{WHERE[stage][0]}: step {step} was taken twice and differs ({stage});"
        f" {_UNREPEATED}"
    )


_IN_MODEL = (
    "model",
    (
        "keep what lasts from step to step in buffers or parameters of the model, not"
        " in attributes, variables or closures, and let evaluations change nothing"
    ),
)
_IN_OPTIMIZER = (
    "optimizer",
    (
        "let it keep what lasts in self.state, or in a state_dict and load_state_dict"
        " of its own, and on_step_end in buffers of the model"
    ),
)
_IN_SAMPLES = (
    "let a sample, and what a function of yours makes of samples, depend on indices and"
    " on draws from rng.generator() or the global generators alone, not on a clock, a"
    " generator, a counter or a cache, nor on get_worker_info()"
)
_IN_VALUES = (
    "method",
    (
        "keep what a step leaves for evaluations in buffers of the model, and nothing"
        " from call to call in validation_step, compute, metrics or the model in"
        " evaluation mode"
    ),
)
# What is compared, in causal order, with the configuration key to look at and the
# remedy.
WHERE = {
    "epoch values": (
        "method",
        (
            "let epoch_values depend on the epoch, on buffers and on parameters of the"
            " model alone"
        ),
    ),
    "learning rate": (
        "schedule",
        "let a schedule alone set learning rates, by the step",
    ),
    "sample_ids": ("data.sampler", "let batches depend on epoch, n and rng alone"),
    "batch": ("data.train", _IN_SAMPLES),
    "loss": _IN_MODEL,
    "gradients": _IN_MODEL,
    "weights": _IN_OPTIMIZER,
    "buffers": _IN_MODEL,
    "optimizer": _IN_OPTIMIZER,
    "validation batch": ("data.validation", _IN_SAMPLES),
    "validation values": _IN_VALUES,
    "test batch": ("data.test", _IN_SAMPLES),
    "test values": _IN_VALUES,
    "logged values": _IN_MODEL,
    "values of callbacks": _IN_MODEL,
}
