"""The training loop: steps, validations and checkpoints, in the order of the plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch_deterministic_kernels as kernels
from torch import Tensor

from seedbed import fingerprint
from seedbed.errors import InputError, Interrupted
from seedbed.operations import explained
from seedbed.pipeline.source import Batch
from seedbed.training import checkpoint, graphs, schedules
from seedbed.training.cores import CoreShare
from seedbed.training.evaluate import evaluate, run_evaluation_callbacks, swapped
from seedbed.training.replay import take_twice
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Plan, Progress, StepResult, TrainingState
from seedbed.training.step import train_step


class Logger:
    """The interface of run loggers, and a null logger for processes that write no
    record."""

    def __init__(self, training: TrainingState | None = None) -> None:
        self._sharded = training if training and training.sharding.is_sharded else None

    def log_step(
        self,
        step: int,
        loss: Tensor,
        values: dict[str, Tensor] | None,
        stages: Tensor | None,
    ) -> None:
        """Note a step; nothing is read from the device until `write`."""

    def write(self, progress: Progress) -> None: ...
    def log_validation(
        self, progress: Progress, result: Evaluation, is_best: bool
    ) -> None:
        if is_best:
            self.save_checkpoint(progress)

    def log_new_best(self, progress: Progress) -> None:
        """Note that a validation has other samples than those before a resume."""

    def save_checkpoint(self, progress: Progress) -> None:
        if self._sharded:  # rank 0 gathers it
            checkpoint.capture(self._sharded, progress)

    def summary(self, progress: Progress) -> dict[str, Any]:
        """Return what summary.json says of a run that has ended."""
        return {}

    def log(self, text: str) -> None: ...
    def close(self) -> None: ...

    def log_test(self, evaluations: Mapping[int, Evaluation]) -> None:
        """Log test results by the step of their weights; the one that counts comes
        last."""


def fit(
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    batches: Iterator[Batch],  # for each step, one per shard of `shards.mine`
    validation: Callable[[], Iterable[Batch]],
    run_logger: Logger,
    shards: Shards,
    # called after each step, before it is saved
    after_step: Callable[[int], None] | None = None,
) -> None:
    """Train to the end of the plan, or raise Interrupted; in both cases save the last
    step."""
    hasher = fingerprint.Hasher(training.device)
    first_step = progress.step
    # A GPU, or another process, is waited for on purpose.
    is_alone = training.device.type == "cpu" and not shards.is_shared
    cores = CoreShare(run_logger.log, is_alone)
    shards.begin(training, first_step)
    training.graphs = graphs.of_run(training, plan.trainer, run_logger.log)
    try:
        while True:
            _validate_if_due(training, plan, progress, validation, run_logger, shards)
            if plan.is_over(progress):
                break
            if plan.keeps(progress.step) and progress.kept_step < progress.step:
                # with its validation, as the last one
                progress.kept_step = progress.step
                save(training, progress, run_logger, shards)
            if shards.stop_requested() or progress.step == plan.last_step:
                raise Interrupted
            step = progress.step + 1
            schedules.set_learning_rates(
                training.optimizers, plan.learning_rate_factor(step - 1)
            )
            with explained(training.model):
                slices = [next(batches) for _ in shards.mine]
            is_first = progress.step == first_step
            with cores:
                result = take_step(
                    training, plan, slices, step, shards, hasher, is_first
                )
            progress.step = step
            if is_first:
                training.require_flags()
            run_logger.log_step(step, *result)
            if step == 1:
                warn_of_missing_gradients(training, run_logger)
            if plan.writes(step):
                run_logger.write(progress)
            if after_step is not None:
                after_step(step)
            if plan.saves(step):
                save(training, progress, run_logger, shards)
    except Interrupted:
        save(training, progress, run_logger, shards)
        raise
    finally:
        training.graphs = None
    warn_of_missing_gradients(training, run_logger, is_over=True)
    progress.kept_step = progress.step
    save(training, progress, run_logger, shards)


def _validate_if_due(
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    validation: Callable[[], Iterable[Batch]],
    run_logger: Logger,
    shards: Shards,
) -> None:
    """Validate once after a step that the plan names; choose the best weights anew if
    it says so."""
    step = progress.step
    if step in plan.new_best_steps and progress.best_step < step:
        progress.forget_best()
    if plan.validates_after(step) and progress.validated_step < step:
        validate(training, plan, progress, validation(), run_logger, shards)


def take_step(
    training: TrainingState,
    plan: Plan,
    slices: Sequence[Batch],
    step: int,
    shards: Shards,
    hasher: fingerprint.Hasher,
    is_first: bool,  # of this process
) -> StepResult:
    """Take a step; some are taken twice and compared."""
    logs = plan.logs(step)
    is_hashed = plan.hashes(step)
    if training.strict and plan.replays(step):
        result = take_twice(training, slices, step, shards, logs)
        return result if is_hashed else result._replace(stages=None)
    take = partial(
        train_step, training, slices, step, shards, logs, hasher if is_hashed else None
    )
    # A step that PyTorch refuses is repeated to locate the operation.
    is_located = is_first and not plan.trainer.compile
    located = kernels.locate_backward() if is_located else nullcontext()
    with explained(training.model, repeat=take), located:
        return take()


def warn_of_missing_gradients(
    training: TrainingState, run_logger: Logger, is_over: bool = False
) -> None:
    """Name the parameters that got no gradient so far; at the end, also those never
    trained."""
    waiting = training.without_gradient
    count = len(training.to_train)
    when = "any step" if is_over else "step 1"
    if unused := [name for name, is_asked in waiting.items() if is_asked]:
        run_logger.log(
            f"warning: model: {len(unused)} of {count} parameters got no gradient in"
            f" {when} ({_some(unused)}): the loss does not depend on them, or a"
            " backward pass stops before them, such as that of torch.utils.checkpoint"
            " without use_reentrant=False"
        )
    frozen = [name for name, is_asked in waiting.items() if not is_asked]
    if is_over and frozen:
        run_logger.log(
            f"warning: method: {len(frozen)} of {count} parameters were never trained "
            f"({_some(frozen)}): in no step did trainable and updates select them"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:4], *(["..."] if len(names) > 4 else [])])


def _counting_inputs(
    batches: Iterable[Batch], counts: list[int | None]
) -> Iterator[Batch]:
    """Yield batches; add to `counts` of how many inputs each has a tuple, else None."""
    for batch in batches:
        is_tuple = type(batch.inputs) in (tuple, list)  # no PackedSequence
        counts.append(len(batch.inputs) if is_tuple else None)
        yield batch


def validate(
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    batches: Iterable[Batch],
    run_logger: Logger,
    shards: Shards,
) -> None:
    shards.compare(training, progress.step)
    rates = schedules.learning_rates(training.optimizers)
    counts: list[int | None] = []
    with swapped(training):
        result = evaluate(training, _counting_inputs(batches, counts), shards)
        _note_samples(training, progress, result, run_logger, counts)
        value = training.monitored(result.values)
        is_best = progress.note_validation(value, training.monitor)
        result = run_evaluation_callbacks(training, "validation", progress.step, result)
    if schedules.learning_rates(training.optimizers) != rates:
        raise InputError(
            "schedule: expected learning rates that a schedule alone sets, got others"
            f" after the validation of step {progress.step}; choose schedule=plateau,"
            " or write a function of the step"
        )
    if plan.plateau is not None:
        progress.plateau = schedules.note_validation(
            plan.plateau, progress.plateau, value, training.monitor, training.optimizers
        )
    run_logger.log_validation(progress, result, is_best)


def _note_samples(
    training: TrainingState,
    progress: Progress,
    result: Evaluation,
    run_logger: Logger,
    counts: Sequence[int | None],  # of the inputs of each batch
) -> None:
    """Note the samples of a validation; raise InputError if they are others than
    before, or have no label."""
    progress.samples_hash = progress.samples_hash or result.samples_hash
    if training.strict and progress.samples_hash != result.samples_hash:
        raise InputError(
            "data.validation: expected the same samples in each validation, got others"
            f" after step {progress.step}; let a sample depend on its index and on"
            " seeded draws alone, or set determinism.on_nondeterministic=warn"
        )
    if progress.monitor and progress.samples_before not in (None, result.samples_hash):
        progress.forget_best()
        run_logger.log_new_best(progress)
    progress.samples_before = None
    # others may follow the predictions
    targets = fingerprint.text_of([result.targets[:, 0]])
    samples = len(result.targets)
    progress.validation_set = {
        "samples": samples,
        "targets": targets,
        "inputs": counts[0] if counts else None,
    }
    if not result.has_labels:
        raise InputError(
            f"data.validation: no sample has a label (the weights of all {samples}"
            " samples are 0)"
        )


def save(
    training: TrainingState, progress: Progress, run_logger: Logger, shards: Shards
) -> None:
    training.require_flags()
    shards.compare(training, progress.step)
    run_logger.save_checkpoint(progress)
