"""One step: forward and backward for each shard, their mean, clipping, the update, fingerprints."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import fingerprint, rng, tasks
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors, move, tensors_of
from seedbed.training import capture
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState

UPDATE = -1  # where a shard's number stands otherwise


def train_step(
    training: TrainingState,
    batches: Sequence[Batch],
    step: int,
    shards: Shards,
    with_metric: bool,
    hasher: fingerprint.Hasher | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Take one step.

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
    hashes = _hash_batches(hasher, batches, shards) if hasher else []  # a model may change them

    results = (
        forward_and_backward(training, parameters, batch, step, shard, with_metric)
        for shard, batch in zip(shards.mine, batches, strict=True)
    )
    mean = shards.reduce(results, hashes)
    gradients, loss = mean[: len(parameters)], mean[len(parameters)]
    metric = mean[len(parameters) + 1] if with_metric else None

    if hasher:  # before clipping, which changes gradients in place
        if hashes:
            hasher.add_shards(mean[-1])
        hasher.add([loss], gradients)
    if shards.count > 1:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
    if training.gradient_clip_norm is not None:
        nn.utils.clip_grad_norm_(parameters, training.gradient_clip_norm)
    seed_draws(training, step, UPDATE)  # the same in all processes, for optimizers that draw
    optimizer.step()
    if hasher:
        state = capture.optimizer_tensors(optimizer)
        hasher.add(list(model.parameters()), list(model.buffers()), state)
    return loss, metric, hasher.hashes() if hasher else None


def forward_and_backward(
    training: TrainingState,
    parameters: Sequence[Tensor],
    batch: Batch,
    step: int,
    shard: int,
    with_metric: bool,
) -> list[Tensor]:
    """Return each parameter's gradient, then the loss and (if asked for) the metric of a batch."""
    seed_draws(training, step, shard)
    with torch.autocast(training.device.type, torch.bfloat16, enabled=training.autocast):
        outputs = in_float32(training.model(batch.inputs))
        loss = training.task.loss(outputs, batch.targets)
    tasks.check_loss(training.task, loss)
    for parameter in parameters:
        parameter.grad = None
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    if not with_metric:
        return [*gradients, loss.detach()]
    with torch.no_grad():
        metric = training.task.metric(outputs, batch.targets).mean()
    return [*gradients, loss.detach(), metric]


def in_float32(outputs: Any) -> Any:
    """Return a model's output for its task: one tensor as float32, anything else as it is."""
    return outputs.float() if isinstance(outputs, Tensor) else outputs


def to_device(batch: Batch, training: TrainingState) -> Batch:
    """Move a batch to the device, images in the memory order that was asked for."""

    def arrange(tensor: Tensor) -> Tensor:
        is_images = tensor.dim() == 4 and not tensor.is_nested
        aligned = _aligned(tensor)
        return _channels_last(aligned) if training.channels_last and is_images else aligned

    moved = move((batch.inputs, batch.targets), training.device)
    return Batch(batch.ids, *map_tensors(arrange, moved))


def seed_draws(training: TrainingState, step: int, place: int) -> None:
    """Seed what a model or an optimizer may draw from.

    Args:
        place: a shard, or the update, in training; a sample in evaluation.
    """
    if training.dropout_seed is not None:
        key = rng.key(training.dropout_seed, "dropout", step, place)
        rng.seed_globals(key, training.device.type)


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


def _hash_batches(
    hasher: fingerprint.Hasher, batches: Sequence[Batch], shards: Shards
) -> list[Tensor]:
    """Add a whole batch to a hasher; of one in shards, return the hashes of those at hand."""
    ids = [batch.ids for batch in batches]
    contents = [tensors_of((batch.inputs, batch.targets)) for batch in batches]
    if shards.count > 1:
        return [hasher.of_shards(ids, contents, shards.mine, shards.count)]
    hasher.add(ids, *contents)
    return []
