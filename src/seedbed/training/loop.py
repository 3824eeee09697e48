"""Training: one step, one evaluation, and the loop around them."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from seedbed import deferred, fingerprint, rng, tasks
from seedbed.data.loader import Batch
from seedbed.data.tensors import map_tensors, move, tensors_of
from seedbed.errors import InputError, Interrupted
from seedbed.operations import refusals
from seedbed.training import capture, held
from seedbed.training.shards import Shards

if TYPE_CHECKING:
    from seedbed.worker.run_logger import Journal

T = TypeVar("T")
_UPDATE = -1  # where a shard's number stands otherwise


@dataclass(frozen=True)
class Learner:
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
        """Say whether a validation follows this step."""
        epoch, rest = divmod(step, self.steps_per_epoch)
        every = self.validate_every_epochs
        return step == self.total_steps or bool(every and epoch and not rest and epoch % every == 0)

    def is_due(self, every_steps: int, step: int) -> bool:
        """Say whether something that happens every so many steps, and in the last, is due."""
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
    learner: Learner,
    plan: Plan,
    progress: Progress,
    batches: Iterator[Batch],
    validation: Callable[[], Iterable[Batch]],
    journal: "Journal",
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
        shards.compare(learner, progress.step)
        journal.save_checkpoint(progress)

    tally = fingerprint.Tally(learner.device)
    shards.begin(learner, progress.step)
    try:
        while True:
            if plan.validates_after(progress.step) and progress.validated_step < progress.step:
                shards.compare(learner, progress.step)
                result = explained(learner, lambda: evaluate(learner, validation(), shards))
                is_best = note_result(progress, result, learner.task.higher_is_better)
                journal.note_validation(progress, result, is_best)
            patience = plan.early_stopping_patience
            stale = patience is not None and progress.validations_without_gain >= patience
            if stale or progress.step == plan.total_steps:
                break
            if shards.stop_requested():
                raise Interrupted
            parts = explained(learner, lambda: [next(batches) for _ in shards.mine])
            set_learning_rate(learner.optimizer, plan.learning_rate_factor(progress.step))
            step = progress.step + 1
            logs = plan.is_due(plan.log_every_steps, step)
            hashed = tally if plan.is_due(plan.fingerprint_every_steps, step) else None
            explained(learner, functools.partial(before_step, parts, step, shards.mine[0]))
            take = functools.partial(train_step, learner, parts, step, shards, logs, hashed)
            loss, metric, rungs = explained(learner, take)
            progress.step = step
            journal.note_step(step, loss, metric, rungs)
            if logs or step % 100 == 0:
                journal.write(progress)
            if step < plan.total_steps and plan.is_due(plan.checkpoint_every_steps, step):
                save()
    except Interrupted:
        save()
        raise
    save()


def explained(learner: Learner, work: Callable[[], T]) -> T:
    """Do something; where PyTorch refuses an operation or a `view`, raise what to use instead."""
    try:
        return work()
    except RuntimeError as error:
        if learner.channels_last and refusals.is_view(error):
            raise refusals.explain_view(error, learner.model) from None
        if not refusals.is_refusal(error):
            raise
        raise refusals.explain(error, learner.model, work) from None


def train_step(
    learner: Learner,
    batches: Sequence[Batch],
    step: int,
    shards: Shards,
    with_metric: bool,
    tally: fingerprint.Tally | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Take one step: forward and backward for each shard, their mean, clipping, the update.

    Args:
        batches: one for each of `shards.mine`.
        tally: what takes the fingerprints of the step; None for none.

    Returns:
        The whole batch's loss and (if asked for) metric, scalars on the device, not synchronised;
        the fingerprints of the step (if asked for), as `fingerprint.Ladder` takes them.
    """
    model, optimizer = learner.model, learner.optimizer
    parameters = [p for p in model.parameters() if p.requires_grad]
    batches = [to_device(batch, learner) for batch in batches]
    in_shards = shards.count > 1
    hashes = _take_batches(tally, batches, shards) if tally else []  # a model may change them

    def parts(hashes: list[Tensor]) -> Iterator[list[Tensor]]:
        for index, batch in zip(shards.mine, batches, strict=True):
            seed_draws(learner, step, index)
            yield hashes + forward_and_backward(learner, parameters, batch, with_metric)
            hashes = [torch.zeros_like(each) for each in hashes]  # the first part has them all

    mean = iter(shards.reduce(parts(hashes)))
    if tally and in_shards:
        tally.add_shards(next(mean))
    loss, metric = next(mean), next(mean) if with_metric else None
    gradients = list(mean)
    if in_shards:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    if tally:  # now, since clipping changes gradients in place
        tally.add([loss], gradients)
    if learner.gradient_clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, learner.gradient_clip_norm)
    seed_draws(learner, step, _UPDATE)  # the same in all processes, for optimizers that draw
    with deferred.without_compiler():
        optimizer.step()
    if tally:
        state = capture.optimizer_tensors(optimizer)
        tally.add(list(model.parameters()), list(model.buffers()), state)
    return loss, metric, tally.hashes() if tally else None


def forward_and_backward(
    learner: Learner, parameters: Sequence[Tensor], batch: Batch, with_metric: bool
) -> list[Tensor]:
    """Return the loss of a batch, its metric (if asked for), and each parameter's gradient."""
    loss, outputs = forward(learner, batch)
    tasks.check_loss(learner.task, loss)
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    metric = [_metric(learner, outputs, batch)] if with_metric else []
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    return [loss.detach(), *metric, *gradients]


def forward(learner: Learner, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the loss (scalar) and the outputs (B, ...) of a batch."""
    with torch.autocast(learner.device.type, torch.bfloat16, enabled=learner.autocast):
        outputs = output_of(learner, batch)
        return learner.task.loss(outputs.float(), batch.targets), outputs


def output_of(learner: Learner, batch: Batch) -> Tensor:
    """Return the model's output, (B, ...), for a batch."""
    output = learner.model(batch.inputs)
    if not isinstance(output, Tensor):
        raise InputError(
            f"model: expected one tensor from {type(learner.model).__name__}, got a "
            f"{type(output).__name__}; return the part that the task takes"
        )
    return output


def evaluate(learner: Learner, batches: Iterable[Batch], shards: Shards) -> Evaluation:
    """Evaluate the model on a data set, in evaluation mode.

    Args:
        batches: those that are ours by `shards.share`.

    Raises:
        InputError: model or task do not return what an evaluation takes.
        Interrupted: the run was asked to stop meanwhile.
    """
    parts = shards.gather(lambda: measure(learner, batches, shards.asked_to_stop))
    losses, metrics, outputs, targets = tasks.join(list(filter(None, parts)))
    return Evaluation(tasks.mean([losses]), tasks.mean([metrics]), outputs, targets)


@torch.no_grad()
def measure(
    learner: Learner, batches: Iterable[Batch], asked_to_stop: Callable[[], bool]
) -> list[Tensor]:
    """Return losses, metrics, outputs and targets of all samples, on the CPU; [] for no batch."""
    rows = []
    with held.kept(learner.model, with_weights=learner.strict):
        for batch in batches:
            if asked_to_stop():
                raise Interrupted
            batch = to_device(batch, learner)
            seed_draws(learner, 0, int(batch.ids[0]))  # some models draw in evaluation, too
            with torch.autocast(learner.device.type, torch.bfloat16, enabled=learner.autocast):
                output = output_of(learner, batch).float()
            losses = learner.task.losses(output, batch.targets)
            metrics = learner.task.metric(output, batch.targets)
            tasks.check_each_sample(learner.task, losses, metrics)
            rows.append([losses, metrics, output, batch.targets])
    return [column.cpu() for column in tasks.join(rows)] if rows else []


def note_result(progress: Progress, result: Evaluation, higher_is_better: bool) -> bool:
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


def to_device(batch: Batch, learner: Learner) -> Batch:
    """Move a batch to the device, images in the memory order that was asked for."""

    def arrange(tensor: Tensor) -> Tensor:
        is_images = tensor.dim() == 4 and not tensor.is_nested
        aligned = _aligned(tensor)
        return _channels_last(aligned) if learner.channels_last and is_images else aligned

    moved = move((batch.inputs, batch.targets), learner.device)
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


def seed_draws(learner: Learner, step: int, place: int) -> None:
    """Seed what a model or an optimizer may draw from.

    Args:
        place: a shard, or the update, in training; a sample in evaluation.
    """
    if learner.dropout_seed is not None:
        key = rng.key(learner.dropout_seed, "dropout", step, place)
        rng.key_globals(key, learner.device.type)


def _metric(learner: Learner, outputs: Tensor, batch: Batch) -> Tensor:
    return learner.task.metric(outputs.detach().float(), batch.targets).mean()


def _take_batches(
    tally: fingerprint.Tally, batches: Sequence[Batch], shards: Shards
) -> list[Tensor]:
    """Add a whole batch to a tally; of one in shards, return the hashes instead."""
    ids = [batch.ids for batch in batches]
    contents = [tensors_of((batch.inputs, batch.targets)) for batch in batches]
    if shards.count > 1:
        return [tally.of_shards(ids, contents, shards.mine, shards.count)]
    tally.add(ids, *contents)
    return []
