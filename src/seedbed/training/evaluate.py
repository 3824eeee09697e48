"""One evaluation: losses, metrics and predictions of all samples, in evaluation mode."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from seedbed import fingerprint, tasks
from seedbed.data.source import Batch
from seedbed.data.tensors import tensors_of
from seedbed.errors import Interrupted
from seedbed.operations.refusals import explained
from seedbed.training import held
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, TrainingState
from seedbed.training.step import in_float32, seed_draws, to_device


def evaluate(training: TrainingState, batches: Iterable[Batch], shards: Shards) -> Evaluation:
    """Evaluate the model on a data set, in evaluation mode.

    Args:
        batches: those that are ours by `shards.share`.

    Raises:
        InputError: model or task do not return what an evaluation takes, or PyTorch refuses an
            operation.
        Interrupted: the run was asked to stop meanwhile.
    """
    parts = shards.gather(lambda: measure(training, batches, shards.asked_to_stop))
    columns = [torch.cat(column) for column in zip(*filter(None, parts), strict=True)]
    losses, metrics, predictions, targets, hashes = columns
    return Evaluation(tasks.mean([losses]), tasks.mean([metrics]), predictions, targets, hashes)


@torch.no_grad()
def measure(
    training: TrainingState, batches: Iterable[Batch], asked_to_stop: Callable[[], bool]
) -> list[Tensor]:
    """Return, on the CPU, what is kept of an evaluation's batches; [] if there are none.

    Returns:
        Each sample's loss, metric, prediction and first number of its target; each batch's hash of
        what the model returned.
    """
    rows = []
    hasher = fingerprint.Hasher(training.device)
    channels_last = training.channels_last
    kept = held.kept(training.model, training.task, training.strict)
    with kept, explained(training.model, channels_last):
        for batch in batches:
            if asked_to_stop():
                raise Interrupted
            batch = to_device(batch, training)
            seed_draws(training, 0, int(batch.ids[0]))  # some models draw in evaluation, too
            with torch.autocast(training.device.type, torch.bfloat16, enabled=training.autocast):
                outputs = in_float32(training.model(batch.inputs))
            found = tasks.for_each_sample(training.task, outputs, batch.targets)
            hasher.add(tensors_of(outputs))
            rows.append([*found, _first_numbers(batch.targets, len(found[0])), hasher.hashes()])
    return [torch.cat(column).cpu() for column in zip(*rows, strict=True)]


def _first_numbers(targets: Any, count: int) -> Tensor:
    """Return the first number of each sample's target, (count,); NaN where samples have none."""
    for tensor in tensors_of(targets):
        if tensor.numel() and tensor.dim() and len(tensor) == count:
            return tensor.reshape(count, -1)[:, 0]
    return torch.full((count,), torch.nan)
