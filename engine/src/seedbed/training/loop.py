"""The training loop: steps, validations and checkpoints, in the order of the plan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from seedbed import fingerprint
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors
from seedbed.errors import InputError, Interrupted
from seedbed.names import STAGES
from seedbed.operations.refusals import explained
from seedbed.training import checkpoint, schedules
from seedbed.training.callbacks import Callbacks
from seedbed.training.evaluate import evaluate, look_at, swapped
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Plan, Progress, StepResult, TrainingState
from seedbed.training.step import train_step


class Logger:
    """The interface of run loggers, and a null logger for processes that write no record."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}  # the latest value of each metric

    def log_step(
        self, step: int, loss: Tensor, values: dict[str, Tensor] | None, stages: Tensor | None
    ) -> None:
        """Note a step; nothing is read from the device until `write`."""

    def write(self, progress: Progress) -> None: ...
    def log_validation(self, progress: Progress, result: Evaluation, is_best: bool) -> None: ...
    def save_checkpoint(self, progress: Progress) -> None: ...
    def log(self, text: str) -> None: ...
    def close(self) -> None: ...

    def log_test(self, results: Mapping[int, Evaluation]) -> None:
        """Log test results by the step of their weights; the one that counts comes last."""


def fit(
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    batches: Iterator[Batch],
    validation: Callable[[], Iterable[Batch]],
    run_logger: Logger,
    shards: Shards,
    after_step: Callable[[int], None] | None = None,
) -> None:
    """Train from `progress` to the end of the plan.

    Args:
        batches: for each step, one batch per shard of `shards.mine`.
        after_step: called with the number of each step, before it is logged.

    Raises:
        Interrupted: the run was asked to stop; a checkpoint of the last complete step is saved.
    """
    hasher = fingerprint.Hasher(training.device)
    first_step = progress.step
    shards.begin(training, first_step)
    try:
        while True:
            if plan.validates_after(progress.step) and progress.validated_step < progress.step:
                validate(training, plan, progress, validation(), run_logger, shards)
            if plan.is_over(progress):
                break
            if shards.stop_requested():
                raise Interrupted
            step = progress.step + 1
            schedules.set_learning_rates(training.optimizers, plan.learning_rate_factor(step - 1))
            with explained(training.model):
                slices = [next(batches) for _ in shards.mine]
            logs = plan.is_due(plan.trainer.log_every_steps, step)
            takes_fingerprints = plan.is_due(plan.fingerprint_every_steps, step)
            hashed = hasher if takes_fingerprints or step <= plan.compared_steps else None
            every_steps = plan.trainer.replay_every_steps
            if training.strict and every_steps and step % every_steps == 0:
                result = take_twice(training, slices, step, shards, logs)
                result = result if hashed else result._replace(stages=None)
            else:
                take = partial(train_step, training, slices, step, shards, logs, hashed)
                # A step that PyTorch refuses is repeated to locate the operation.
                with explained(training.model, repeat=take):
                    result = take()
            progress.step = step
            if after_step is not None:
                after_step(step)
            if step == first_step + 1:
                training.require_flags()
            run_logger.log_step(step, *result)
            if logs or step % 100 == 0:
                run_logger.write(progress)
            if step < plan.total_steps and plan.is_due(plan.trainer.checkpoint_every_steps, step):
                save(training, progress, run_logger, shards)
    except Interrupted:
        save(training, progress, run_logger, shards)
        raise
    save(training, progress, run_logger, shards)


def take_twice(
    training: TrainingState, batches: Sequence[Batch], step: int, shards: Shards, with_values: bool
) -> StepResult:
    """Take a step, restore the state before it, take it again, and return the second result.

    This finds kernels that do not repeat, draws that no seed controls, and hardware that errs
    (silent data corruption), at any time of a run. What a checkpoint lacks is found by the
    rehearsal. Callbacks see the second step only.

    Raises:
        InputError: a fingerprint of the two differs in any process; the message names the first.
    """
    with checkpoint.fitting("checkpoint"):
        saved = checkpoint.encode(checkpoint.capture(training, Progress(step - 1)))
    # A model may change its inputs in place.
    copies = [Batch(each.ids, *map_tensors(torch.Tensor.clone, each[1:])) for each in batches]
    hasher = fingerprint.Hasher(training.device)
    callbacks, training.callbacks = training.callbacks, Callbacks()
    first = train_step(training, copies, step, shards, with_values, hasher)
    with checkpoint.fitting("checkpoint"):
        checkpoint.restore(training, checkpoint.decode(saved, training.device))
    training.callbacks = callbacks
    shards.begin(training, step - 1)
    second = train_step(training, batches, step, shards, with_values, hasher)
    assert first.stages is not None
    assert second.stages is not None
    pairs = zip(STAGES, first.stages.tolist(), second.stages.tolist(), strict=True)
    found = shards.gather(lambda: [name for name, a, b in pairs if a != b])
    if differing := [name for name in STAGES if any(name in each for each in found)]:
        raise InputError(
            f"trainer.replay_every_steps: expected the same {differing[0]} each time that step "
            f"{step} is taken from one state, got another; keep what lasts in buffers of the "
            "model, draw from the global generators, and look for a nondeterministic kernel or "
            "faulty hardware"
        )
    return second


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
    with swapped(training):
        result = evaluate(training, batches, shards)
        value, higher = training.monitored(result.values), training.higher_is_better
        is_best = progress.note_validation(value, higher)
        result = look_at(training, "validation", progress.step, result)
    if schedules.learning_rates(training.optimizers) != rates:
        raise InputError(
            "schedule: expected learning rates that a schedule alone sets, got others after the "
            f"validation of step {progress.step}; choose schedule=plateau, or write a function of "
            "the step"
        )
    if plan.plateau is not None:
        noted, optimizers = progress.plateau, training.optimizers
        progress.plateau = schedules.note_validation(plan.plateau, noted, value, higher, optimizers)
    run_logger.log_validation(progress, result, is_best)


def save(training: TrainingState, progress: Progress, run_logger: Logger, shards: Shards) -> None:
    training.require_flags()
    shards.compare(training, progress.step)
    run_logger.save_checkpoint(progress)
