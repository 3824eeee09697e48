"""One evaluation: what the method keeps of all samples, in evaluation mode."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from seedbed import fingerprint
from seedbed.data.source import Batch
from seedbed.data.tensors import map_tensors, tensors_of
from seedbed.errors import InputError, Interrupted
from seedbed.methods import Method, Seen
from seedbed.names import COMPUTE, TRAIN_END
from seedbed.operations.refusals import explained
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, TrainingState
from seedbed.training.step import look, seed_draws, to_device
from seedbed.training.unchanged import evaluating, unchanged
from seedbed.training.values import of_compute, of_validation_step


@dataclass
class Kept:
    """What one process keeps of an evaluation's batches, on the CPU, in their order.

    Attributes:
        values: by name, tensors and pairs (sum, count), one for each batch.
        columns: the predictions and the first numbers of targets of samples, hashes of batches.
        states: of the configuration's metrics, one for each batch.
        seen: pairs of outputs and targets, one for each batch, if a callback asks for them.
    """

    values: dict[str, list[Any]]
    columns: dict[str, list[Tensor]]
    states: dict[str, list[Any]]
    seen: list[tuple[Any, Any]]


def evaluate(training: TrainingState, batches: Iterable[Batch], shards: Shards) -> Evaluation:
    """Evaluate the model on a data set, in evaluation mode.

    Args:
        batches: those that are ours by `shards.share`.

    Raises:
        InputError: model or method do not return what an evaluation takes, or PyTorch refuses an
            operation.
        Interrupted: the run was asked to stop meanwhile.
    """
    parts = shards.gather(lambda: measure(training, batches, shards))
    kept = [part for part in parts if part.columns]  # others had no batch
    columns = {
        name: torch.cat([each for part in kept for each in part.columns[name]])
        for name in kept[0].columns
    }
    return Evaluation(
        values_of(training, parts),
        columns.get("predictions"),
        columns["targets"],
        columns["output_hashes"],
        _seen(training, kept) if training.callbacks.look_at_evaluations else None,
    )


def values_of(training: TrainingState, parts: Sequence[Kept]) -> dict[str, float]:
    """Return the values of an evaluation by name: the method's and those of metrics.

    Args:
        parts: of all processes, in their order.
    """
    kept = [part for part in parts if part.columns]
    method = training.method
    found = _of_all_samples(method, kept)
    with torch.no_grad(), evaluating(training.model):
        seed_draws(training, 0, COMPUTE)
        values = of_compute(method, method.compute(found))
    names = training.metrics.names
    states = {name: [each for part in kept for each in part.states[name]] for name in names}
    return values | training.metrics.of_all(states)


def look_at(training: TrainingState, phase: str, step: int, result: Evaluation) -> Evaluation:
    """Let callbacks look at an evaluation; return it with what they have logged."""
    run = training.callbacks.run
    if run is None:
        return result
    run.logs, run.phase, run.step = True, phase, step
    logged: dict[str, Tensor] = {}
    with evaluating(training.model):
        if phase == "validation":
            logged = look(training, "on_validation_end", step)
        if result.seen is not None:
            seen = replace(result.seen, phase=phase)
            logged |= look(training, "on_evaluation_end", step, seen)
    values = {name: float(scalar) for name, scalar in logged.items()}
    return replace(result, values=values | result.values, seen=None)


@torch.no_grad()
def end_training(training: TrainingState, log: Callable[[str], None]) -> None:
    """Let the method look at the trained model, which it leaves as it is."""
    if training.overrides("on_train_end"):
        with _looking(training, training.strict):
            seed_draws(training, 0, TRAIN_END)
            training.method.on_train_end(training.model, log)


@torch.no_grad()
def measure(training: TrainingState, batches: Iterable[Batch], shards: Shards) -> Kept:
    """Return what is kept of an evaluation's batches."""
    values: dict[str, list[Any]] = {}
    columns: dict[str, list[Tensor]] = {}
    states: dict[str, list[Any]] = {}
    seen: list[tuple[Any, Any]] = []
    hasher = fingerprint.Hasher(training.device)
    method, channels_last = training.method, training.channels_last
    # Processes share the batches: each would have another part of what changes.
    with (
        _looking(training, training.strict or shards.count > 1),
        explained(training.model, channels_last),
    ):
        for batch in batches:
            if shards.asked_to_stop():
                raise Interrupted
            batch = to_device(batch, training)
            seed_draws(training, 0, int(batch.ids[0]))  # some models draw in evaluation, too
            with torch.autocast(training.device.type, torch.bfloat16, enabled=training.autocast):
                returned = method.validation_step(training.model, batch)
            found, others = of_validation_step(method, returned, len(batch.ids))
            hasher.add(tensors_of(others.get("outputs", list(found.values()))))
            row = {"targets": _first_numbers(batch.targets, len(batch.ids))}
            row |= {"output_hashes": hasher.hashes()}
            if others.get("predictions") is not None:
                row["predictions"] = others["predictions"]
            _append(method, values, found)
            _append(method, columns, row)
            if training.callbacks.look_at_evaluations:
                pair = others.get("outputs"), others.get("targets", batch.targets)
                seen.append(map_tensors(lambda tensor: tensor.to("cpu", copy=True), pair))
            if training.metrics.names:
                _append(method, states, states_of_metrics(training, batch, others))
    return Kept(_on_cpu(values), _on_cpu(columns), states, seen)


@contextmanager
def _looking(training: TrainingState, changes_are_refused: bool) -> Iterator[None]:
    """Put the model into evaluation mode; refuse changes of weights and buffers, if asked to."""
    model = training.model
    refusal = (
        "model: expected an evaluation that leaves weights and buffers as they are, got a "
        f"{type(model).__name__} that changes them; change them in training mode alone, or say "
        "determinism.on_nondeterministic=warn"
    )
    with unchanged(model, refusal) if changes_are_refused else nullcontext(), evaluating(model):
        yield


def states_of_metrics(
    training: TrainingState, batch: Batch, returned: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the states of the configuration's metrics after a batch."""
    if "outputs" not in returned:
        raise InputError(
            f"metrics: expected 'outputs' from {type(training.method).__name__}.validation_step "
            "for the metrics of the configuration, got none; return them beside the others"
        )
    targets = returned.get("targets", batch.targets)
    return training.metrics.of_batch(returned["outputs"], targets, training.device)


def _append(method: Method, columns: dict[str, list[Any]], row: Mapping[str, Any]) -> None:
    """Add copies of what is kept of a batch to those before it: outputs may be used again."""
    if not columns:
        columns.update({name: [] for name in row})
    if others := sorted(row.keys() ^ columns.keys()):
        raise InputError(
            f"method: expected the same names from {type(method).__name__}.validation_step for "
            f"all batches, got {others[0]!r} for some; return all of them for each"
        )
    for name, value in row.items():
        columns[name].append(map_tensors(Tensor.clone, value))


def _on_cpu(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return columns with their tensors on the CPU, one for each batch."""
    return {
        name: [
            tuple(float(part) for part in each) if isinstance(each, tuple) else each.cpu()
            for each in column
        ]
        for name, column in columns.items()
    }


def _together(method: Method, name: str, parts: Sequence[list[Any]]) -> Any:
    """Return the values of all batches: one tensor, or the exact sums of pairs."""
    batches = [each for part in parts for each in part]
    if isinstance(batches[0], tuple):
        sums, counts = zip(*batches, strict=True)
        return math.fsum(sums), math.fsum(counts)
    shapes = {tuple(each.shape[1:]) for each in batches}
    if len(shapes) > 1:
        first, other, *_ = shapes
        raise InputError(
            f"method: expected values of one shape for each sample in {name!r} of "
            f"{type(method).__name__}.validation_step, got {first} and {other}; return one number "
            "for each sample, or (sum, count)"
        )
    return torch.cat(batches)


def _of_all_samples(method: Method, kept: Sequence[Kept]) -> dict[str, Any]:
    """Return the values that `compute` is given."""
    return {
        name: _together(method, name, [part.values[name] for part in kept])
        for name in kept[0].values
    }


def _seen(training: TrainingState, kept: Sequence[Kept]) -> Seen:
    """Return what callbacks are given of an evaluation; its phase is not known here."""
    outputs, targets = zip(*(pair for part in kept for pair in part.seen), strict=True)
    values = _of_all_samples(training.method, kept)
    return Seen("", _joined(outputs), _joined(targets), values)


def _joined(batches: Sequence[Any]) -> Any:
    """Return nested tensors of all batches as one such nest; a list of what does not fit."""
    first = batches[0]
    if isinstance(first, Mapping):
        return {name: _joined([each[name] for each in batches]) for name in first}
    if isinstance(first, tuple | list):
        return tuple(_joined(each) for each in zip(*batches, strict=True))
    is_tensor = isinstance(first, Tensor) and not first.is_nested and first.dim()
    alike = is_tensor and len({tuple(each.shape[1:]) for each in batches}) == 1
    return torch.cat(list(batches)) if alike else list(batches)


def _first_numbers(targets: Any, count: int) -> Tensor:
    """Return the first number of each sample's target, (count,); NaN where samples have none."""
    for tensor in tensors_of(targets):
        if tensor.numel() and tensor.dim() and len(tensor) == count:
            return tensor.reshape(count, -1)[:, 0]
    return torch.full((count,), torch.nan)
