"""Training: one step, one evaluation, and the loop around them."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from seedbed import deferred, fingerprint, rng, tasks
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors, move, tensors_of
from seedbed.errors import InputError, Interrupted
from seedbed.operations import refusals
from seedbed.training import capture, held
from seedbed.training.shards import Shards

if TYPE_CHECKING:
    from seedbed.worker.run_logger import RunLogger

T = TypeVar("T")
_UPDATE = -1  # where a shard's number stands otherwise


@dataclass(frozen=True)
class TrainingState:
    """What is trained, and how a batch reaches it."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    task: tasks.Task
    device: torch.device
    autocast: bool = False
    channels_last: bool = False
    gradient_clip_norm: float | None = None
    dropout_seed: int | None = 0  # None: global generators are left alone
    strict: bool = False  # what cannot promise bits is an error


@dataclass(frozen=True)
class Plan:
    """When things happen, in steps and epochs; 0 means never."""

    total_steps: int
    steps_per_epoch: int
    log_every_steps: int
    validate_every_epochs: int
    checkpoint_every_steps: int
    fingerprint_every_steps: int
    early_stopping_patience: int | None
    learning_rate_factor: Callable[[int], float]

    def validates_after(self, step: int) -> bool:
        """Return whether a validation follows this step."""
        epoch, rest = divmod(step, self.steps_per_epoch)
        every = self.validate_every_epochs
        return step == self.total_steps or bool(every and epoch and not rest and epoch % every == 0)

    def is_due(self, every_steps: int, step: int) -> bool:
        """Return whether something that happens every so many steps, and in the last, is due."""
        return bool(every_steps) and (step % every_steps == 0 or step == self.total_steps)


@dataclass
class Progress:
    """Where a run stands: all that a checkpoint holds beside the weights and the optimizer."""

    step: int = 0
    validated_step: int = 0
    best_step: int = 0
    best_metric: float | None = None
    validations_without_gain: int = 0
    seconds: float = 0.0

    def state(self) -> dict[str, Any]:
        """Return the plain values for a checkpoint."""
        return asdict(self)


@dataclass(frozen=True)
class Evaluation:
    """The means over a data set, and the outputs on the CPU in the order of the samples."""

    loss: float
    metric: float
    outputs: Tensor
    targets: Tensor


def fit(
    training: TrainingState,
    plan: Plan,
    progress: Progress,
    batches: Iterator[Batch],
    validation: Callable[[], Iterable[Batch]],
    run_logger: "RunLogger",
    shards: Shards,
    before_step: Callable[[Sequence[Batch], int, int], None] = lambda _batches, _step, _shard: None,
) -> None:
    """Train from where `progress` stands to the end of the plan.

    Args:
        batches: one for each of `shards.mine`, step after step.
        before_step: what looks at a step's batches, its number and that of the first shard.

    Raises:
        Interrupted: the run was asked to stop; a checkpoint of the last whole step is saved.
    """

    def save() -> None:
        shards.compare(training, progress.step)
        run_logger.save_checkpoint(progress)

    hasher = fingerprint.Hasher(training.device)
    shards.begin(training, progress.step)
    try:
        while True:
            if plan.validates_after(progress.step) and progress.validated_step < progress.step:
                shards.compare(training, progress.step)
                result = explained(training, lambda: evaluate(training, validation(), shards))
                is_best = update_best(progress, result, training.task.higher_is_better)
                run_logger.log_validation(progress, result, is_best)
            patience = plan.early_stopping_patience
            stale = patience is not None and progress.validations_without_gain >= patience
            if stale or progress.step == plan.total_steps:
                break
            if shards.stop_requested():
                raise Interrupted
            parts = explained(training, lambda: [next(batches) for _ in shards.mine])
            set_learning_rate(training.optimizer, plan.learning_rate_factor(progress.step))
            step = progress.step + 1
            logs = plan.is_due(plan.log_every_steps, step)
            hashed = hasher if plan.is_due(plan.fingerprint_every_steps, step) else None
            explained(training, functools.partial(before_step, parts, step, shards.mine[0]))
            take = functools.partial(train_step, training, parts, step, shards, logs, hashed)
            loss, metric, stages = explained(training, take)
            progress.step = step
            run_logger.log_step(step, loss, metric, stages)
            if logs or step % 100 == 0:
                run_logger.write(progress)
            if step < plan.total_steps and plan.is_due(plan.checkpoint_every_steps, step):
                save()
    except Interrupted:
        save()
        raise
    save()


def explained(training: TrainingState, work: Callable[[], T]) -> T:
    """Do something; where PyTorch refuses an operation or a `view`, raise what to use instead."""
    try:
        return work()
    except RuntimeError as error:
        if training.channels_last and refusals.is_view(error):
            raise refusals.explain_view(error, training.model) from None
        if not refusals.is_refusal(error):
            raise
        raise refusals.explain(error, training.model, work) from None


def train_step(
    training: TrainingState,
    batches: Sequence[Batch],
    step: int,
    shards: Shards,
    with_metric: bool,
    hasher: fingerprint.Hasher | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Take one step: forward and backward for each shard, their mean, clipping, the update.

    Args:
        batches: one for each of `shards.mine`.
        hasher: what takes the fingerprints of the step; None for none.

    Returns:
        The whole batch's loss and (if asked for) metric, scalars on the device, not synchronised;
        the fingerprints of the step (if asked for), as `fingerprint.FingerprintRows` takes them.
    """
    model, optimizer = training.model, training.optimizer
    parameters = [p for p in model.parameters() if p.requires_grad]
    batches = [to_device(batch, training) for batch in batches]
    in_shards = shards.count > 1
    hashes = _take_batches(hasher, batches, shards) if hasher else []  # a model may change them

    def parts(hashes: list[Tensor]) -> Iterator[list[Tensor]]:
        for index, batch in zip(shards.mine, batches, strict=True):
            seed_draws(training, step, index)
            yield hashes + forward_and_backward(training, parameters, batch, with_metric)
            hashes = [torch.zeros_like(each) for each in hashes]  # the first part has them all

    mean = iter(shards.reduce(parts(hashes)))
    if hasher and in_shards:
        hasher.add_shards(next(mean))
    loss, metric = next(mean), next(mean) if with_metric else None
    gradients = list(mean)
    if in_shards:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    if hasher:  # now, since clipping changes gradients in place
        hasher.add([loss], gradients)
    if training.gradient_clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, training.gradient_clip_norm)
    seed_draws(training, step, _UPDATE)  # the same in all processes, for optimizers that draw
    with deferred.without_compiler():
        optimizer.step()
    if hasher:
        state = capture.optimizer_tensors(optimizer)
        hasher.add(list(model.parameters()), list(model.buffers()), state)
    return loss, metric, hasher.hashes() if hasher else None


def forward_and_backward(
    training: TrainingState, parameters: Sequence[Tensor], batch: Batch, with_metric: bool
) -> list[Tensor]:
    """Return the loss of a batch, its metric (if asked for), and each parameter's gradient."""
    loss, outputs = forward(training, batch)
    tasks.check_loss(training.task, loss)
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    metric = [_metric(training, outputs, batch)] if with_metric else []
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return [loss.detach(), *metric, *gradients]


def forward(training: TrainingState, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss (scalar) and the outputs (B, ...) of a batch."""
    with torch.autocast(training.device.type, torch.bfloat16, enabled=training.autocast):
        outputs = output_of(training, batch)
        return training.task.loss(outputs.float(), batch.targets), outputs


def output_of(training: TrainingState, batch: Batch) -> Tensor:
    """Return the model's output, (B, ...), for a batch."""
    output = training.model(batch.inputs)
    if not isinstance(output, Tensor):
        raise InputError(
            f"model: expected one tensor from {type(training.model).__name__}, got a "
            f"{type(output).__name__}; return the part that the task takes"
        )
    return output


def evaluate(training: TrainingState, batches: Iterable[Batch], shards: Shards) -> Evaluation:
    """Evaluate the model on a data set, in evaluation mode.

    Args:
        batches: those that are ours by `shards.share`.

    Raises:
        InputError: model or task do not return what an evaluation takes.
        Interrupted: the run was asked to stop meanwhile.
    """
    parts = shards.gather(lambda: measure(training, batches, shards.asked_to_stop))
    losses, metrics, outputs, targets = tasks.join(list(filter(None, parts)))
    return Evaluation(tasks.mean([losses]), tasks.mean([metrics]), outputs, targets)


@torch.no_grad()
def measure(
    training: TrainingState, batches: Iterable[Batch], asked_to_stop: Callable[[], bool]
) -> list[Tensor]:
    """Return losses, metrics, outputs and targets of all samples, on the CPU; [] for no batch."""
    rows = []
    with held.kept(training.model, with_weights=training.strict):
        for batch in batches:
            if asked_to_stop():
                raise Interrupted
            batch = to_device(batch, training)
            seed_draws(training, 0, int(batch.ids[0]))  # some models draw in evaluation, too
            with torch.autocast(training.device.type, torch.bfloat16, enabled=training.autocast):
                output = output_of(training, batch).float()
            losses = training.task.losses(output, batch.targets)
            metrics = training.task.metric(output, batch.targets)
            tasks.check_each_sample(training.task, losses, metrics)
            rows.append([losses, metrics, output, batch.targets])
    return [column.cpu() for column in tasks.join(rows)] if rows else []


def update_best(progress: Progress, result: Evaluation, higher_is_better: bool) -> bool:
    """Bring progress up to date after a validation; say whether it was the best so far."""
    progress.validated_step = progress.step
    best, new = progress.best_metric, result.metric
    if best is None or math.isnan(best):
        is_best = True
    else:
        is_best = new > best if higher_is_better else new < best
    if is_best:
        progress.best_metric, progress.best_step = new, progress.step
    progress.validations_without_gain = 0 if is_best else progress.validations_without_gain + 1
    return is_best


def set_learning_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set each group's learning rate to its peak times a factor."""
    for group in optimizer.param_groups:
        group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor


def to_device(batch: Batch, training: TrainingState) -> Batch:
    """Move a batch to the device, images in the memory order that was asked for."""

    def arrange(tensor: Tensor) -> Tensor:
        is_images = tensor.dim() == 4 and not tensor.is_nested
        aligned = _aligned(tensor)
        return _channels_last(aligned) if training.channels_last and is_images else aligned

    moved = move((batch.inputs, batch.targets), training.device)
    return Batch(batch.ids, *map_tensors(arrange, moved))


def _aligned(tensor: Tensor) -> Tensor:
    """Return a tensor that begins where PyTorch's own do, at a multiple of 64 bytes.

    NumPy's memory begins at one of 16. MKL promises equal bits for equally aligned memory alone.
    """
    is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
    return tensor.clone() if is_dense and tensor.data_ptr() % 64 else tensor


def _channels_last(images: Tensor) -> Tensor:
    """Return images (B, C, H, W) in the memory order (B, H, W, C), with strides that say so.

    One channel is in both orders, and convolutions would take it for the other one.
    """
    _, channels, height, width = images.shape
    strides = (height * width * channels, 1, width * channels, channels)
    return images.contiguous(memory_format=torch.channels_last).as_strided(images.shape, strides)


def seed_draws(training: TrainingState, step: int, place: int) -> None:
    """Seed what a model or an optimizer may draw from.

    Args:
        place: a shard, or the update, in training; a sample in evaluation.
    """
    if training.dropout_seed is not None:
        key = rng.key(training.dropout_seed, "dropout", step, place)
        rng.seed_globals(key, training.device.type)


def _metric(training: TrainingState, outputs: Tensor, batch: Batch) -> Tensor:
    return training.task.metric(outputs.detach().float(), batch.targets).mean()


def _take_batches(
    hasher: fingerprint.Hasher, batches: Sequence[Batch], shards: Shards
) -> list[Tensor]:
    """Add a whole batch to a hasher; of one in shards, return the hashes instead."""
    ids = [batch.ids for batch in batches]
    contents = [tensors_of((batch.inputs, batch.targets)) for batch in batches]
    if shards.count > 1:
        return [hasher.of_shards(ids, contents, shards.mine, shards.count)]
    hasher.add(ids, *contents)
    return []
