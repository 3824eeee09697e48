"""Evaluation of a model on all samples of a data set, in evaluation mode."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from seedbed import fingerprint, record
from seedbed.errors import InputError, Interrupted, one_line
from seedbed.methods import Seen
from seedbed.names import COMPUTE, SWAP, TRAIN_END
from seedbed.operations import explained
from seedbed.pipeline.source import Batch
from seedbed.pipeline.tensors import contents, map_tensors
from seedbed.training import checkpoint, digests
from seedbed.training.callbacks import is_by_sample, require_free, require_shapes
from seedbed.training.optimizers import labelled, optimizer_tensors, restore_optimizer
from seedbed.training.predictions import probabilities_of, rows_of, targets_of
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, Progress, TrainingState
from seedbed.training.step import require_same_names, seed_draws, to_device
from seedbed.training.unchanged import Watched, unchanged


class Row(NamedTuple):
    """The results of one batch, on the CPU."""

    # by name, tensors (B, ...) and pairs (sum, count), see `Method`
    values: dict[str, Any]
    targets: Tensor  # for the table of predictions, as the next two: (B, K)
    predictions: Tensor | None
    probabilities: Tensor | None
    sample_hash: Tensor  # of inputs and targets, int64 (1,)
    output_hash: Tensor  # of `outputs`, or of all values without it, int64 (1,)
    ids: Tensor  # int64 (B,)
    # outputs and targets, if metrics or a callback need them
    seen: tuple[Any, Any] | None


@contextmanager
def evaluating(model: nn.Module, may_change: bool = True) -> Iterator[None]:
    """Run a block in evaluation mode; raise InputError if the model changes, unless it
    may."""

    # without non-persistent buffers: caches, which may change
    def watched() -> Watched:
        return Watched(
            [] if may_change else filter(torch.is_tensor, model.state_dict().values())
        )

    refusal = (
        f"model: {type(model).__name__} changed its weights or buffers during"
        " evaluation; change them in training mode alone, or set"
        " determinism.on_nondeterministic=warn"
    )
    with unchanged(model, watched, refusal):
        model.eval()
        yield


@contextmanager
def swapped(training: TrainingState) -> Iterator[None]:
    """Let the method swap in the weights to evaluate; on exit, restore the model's
    bits."""
    if not training.overrides("on_evaluation_start"):
        yield
        return
    model = training.model
    optimizers = training.optimizers.values()

    def watched() -> Watched:
        tensors = [
            *model.parameters(),
            *model.buffers(),
            *optimizer_tensors(*optimizers),
        ]
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        options = [
            {k: v for k, v in group.items() if k != "params"} for group in groups
        ]
        return Watched(tensors, options=options)

    refusal = (
        "method: expected on_evaluation_end to undo what on_evaluation_start does, got"
        " other weights, optimizer state or options after it in"
        f" {type(training.method).__name__}"
    )
    # swapping back may round
    with unchanged(model, watched, refusal), checkpoint.kept(model):
        _swap(training, "on_evaluation_start")
        try:
            yield
        finally:
            _swap(training, "on_evaluation_end")


@torch.no_grad()
def _swap(training: TrainingState, hook: str) -> None:
    seed_draws(training, 0, SWAP)
    getattr(training.method, hook)(training.model, training.optimizers)


def restore(training: TrainingState, state: Mapping[str, Any]) -> None:
    """Restore the weights of a checkpoint, to be evaluated and not trained."""
    checkpoint.restore_model(training.model, state)
    if training.overrides("on_evaluation_start") and not state.get("swapped"):
        for name, optimizer in labelled(training.optimizers).items():
            restore_optimizer(optimizer, state[name])
        _swap(training, "on_evaluation_start")


def note_best(
    training: TrainingState, progress: Progress, last: dict[str, Any]
) -> None:
    """Note the SHA-256 of the weights as evaluated, in progress and in the last
    checkpoint.

    If they are the best so far: before best.pt is written, last.pt says what will be in
    it.
    """
    if progress.is_best:
        progress.best_sha256 = last[digests.WEIGHTS]
        if training.overrides("on_evaluation_start"):
            with swapped(training):
                captured = checkpoint.capture_model(training.model)
                progress.best_sha256 = digests.of_weights(captured)
        last["progress"] = asdict(progress)


def save_best(
    folder: Path, training: TrainingState, progress: Progress, last: Mapping[str, Any]
) -> None:
    """Write best.pt, as evaluated, if the last checkpoint has the best weights: also on
    resume."""
    if progress.is_best:
        entries: dict[str, Any] = {
            "format_version": record.FORMAT_VERSION,
            "step": progress.step,
        }
        entries["swapped"] = training.overrides("on_evaluation_start")
        entries |= {"metric": progress.best_metric, "monitor": training.monitor.name}
        entries[digests.WEIGHTS] = progress.best_sha256
        with swapped(training):
            # else it has the weights of all processes
            if not training.sharding.is_sharded:
                last = checkpoint.capture_model(training.model)
            state = {**entries, "model": last["model"], "buffers": last["buffers"]}
            checkpoint.save(state, folder / checkpoint.BEST)


def save_as_evaluated(
    path: Path, training: TrainingState, step: int, metric: float
) -> None:
    """Write the weights as evaluated, in the form of best.pt, with a monitored
    value."""
    with swapped(training):
        state: dict[str, Any] = dict(checkpoint.capture_model(training.model))
        state |= {"format_version": record.FORMAT_VERSION, "step": step}
        state |= {"metric": metric, "monitor": training.monitor.name}
        state |= {"swapped": training.overrides("on_evaluation_start")}
        state[digests.WEIGHTS] = digests.of_weights(state)
        checkpoint.save(state, path)


def evaluate(
    training: TrainingState,
    batches: Iterable[Batch],
    shards: Shards,
    most_probabilities: int = 0,
) -> Evaluation:
    """Evaluate the model on this process's batches; raise Interrupted if asked to stop.

    A sample's probabilities are kept if they are at most `most_probabilities`.
    """
    keeps_outputs = training.callbacks.takes_evaluations
    # Each process has consecutive batches, so the rows are in the order of the samples.
    parts = shards.gather(
        lambda: measure(training, batches, shards, keeps_outputs, most_probabilities)
    )
    return evaluation_of(training, [row for part in parts for row in part])


def evaluation_of(training: TrainingState, rows: Sequence[Row]) -> Evaluation:
    """Return the evaluation of batches, from the rows of all processes in order."""

    values = values_of(training, rows)
    seen = None
    has_labels = True
    if math.isnan(values.get("loss", 0.0)):
        # a pair (N,): times the weights, the weights
        loss = of_all_samples(rows).get("loss")
        if isinstance(loss, tuple) and is_by_sample(loss):
            has_labels = bool((loss[1] != 0).any())
    if training.callbacks.takes_evaluations:
        outputs, targets = joined_batches([row.seen for row in rows])
        ids = torch.cat([row.ids for row in rows])
        # `run_evaluation_callbacks` sets the rest.
        seen = Seen("", outputs, targets, of_all_samples(rows), ids)
    predictions = [row.predictions for row in rows if row.predictions is not None]
    probabilities = [row.probabilities for row in rows if row.probabilities is not None]
    return Evaluation(
        values,
        torch.cat(predictions) if predictions else None,
        torch.cat(probabilities) if probabilities else None,
        torch.cat([row.targets for row in rows]),
        torch.cat([row.output_hash for row in rows]),
        int(fingerprint.of_tensors([torch.cat([row.sample_hash for row in rows])])),
        seen,
        has_labels,
    )


@torch.no_grad()
def measure(
    training: TrainingState,
    batches: Iterable[Batch],
    shards: Shards,
    keeps_outputs: bool = False,
    most_probabilities: int = 0,
) -> list[Row]:
    rows: list[Row] = []
    hasher = fingerprint.Hasher(training.device)
    needs_outputs = bool(training.metrics) or keeps_outputs
    # Processes share the batches, so their models would change in different ways.
    may_change = not training.strict and shards.count == 1
    with evaluating(training.model, may_change), explained(training.model):
        for batch in batches:
            batch = to_device(batch, training)
            if not len(batch.ids):  # see `sources.evaluation_batches`
                _forward(training, batch)
                continue
            # Processes that share weights would wait for one that stops.
            if shards.asked_to_stop() and not training.sharding.is_sharded:
                raise Interrupted
            samples = len(batch.ids)
            # a model may change them
            hasher.add(contents((batch.inputs, batch.targets)))
            # some models draw in evaluation mode
            seed_draws(training, 0, int(batch.ids[0]))
            values = _forward(training, batch)
            outputs = values.pop("outputs", None)
            targets = values.pop("targets", batch.targets)
            require_shapes(values, samples, training.overrides("compute"))
            predictions = rows_of(values.pop("predictions", None), samples)
            width = 1 if predictions is None else predictions.shape[1]
            hasher.add(contents(list(values.values()) if outputs is None else outputs))
            hashes = hasher.hashes()
            row = Row(
                values,
                targets_of(batch.targets, samples, width),
                predictions,
                probabilities_of(training.method.task, outputs, most_probabilities),
                hashes[:1],
                hashes[1:],
                batch.ids,
                map_tensors(Tensor.cpu, (outputs, targets)) if needs_outputs else None,
            )
            # the method may reuse its memory
            rows.append(map_tensors(Tensor.clone, row))
    return map_tensors(Tensor.cpu, rows)  # type: ignore[no-any-return]


def _forward(training: TrainingState, batch: Batch) -> dict[str, Any]:
    with training.autocasting():
        returned = training.method.validation_step(training.model, batch)
    return require_mapping(training, "validation_step", returned)


def require_mapping(training: TrainingState, hook: str, values: Any) -> dict[str, Any]:
    """Return what a function of the method returned; raise InputError unless it is a
    mapping."""
    if isinstance(values, Mapping):
        return dict(values)
    advice = "return {name: value}"
    if values is None:
        advice = "end it with a return"
    raise InputError(
        f"method: expected values by name from {type(training.method).__name__}.{hook},"
        f" got {type(values).__name__}; {advice}"
    )


def values_of(training: TrainingState, rows: Sequence[Row]) -> dict[str, float]:
    """Return the values of an evaluation by name, from the rows of all processes in
    order."""
    with torch.no_grad(), evaluating(training.model):
        seed_draws(training, 0, COMPUTE)
        computed = training.method.compute(of_all_samples(rows))
    returned = require_mapping(training, "compute", computed)
    values = {name: float(value) for name, value in returned.items()}
    require_free(values)
    for name, metric in training.metrics.items():
        try:
            metric.reset()
            for row in rows:
                metric.update(*(row.seen or ()))
            values[name] = float(metric.compute())
        except Exception as error:  # a library may raise anything
            raise InputError(
                f"metrics.{name}: expected a number of {type(metric).__name__} for the"
                " 'outputs' and 'targets' that validation_step returns, got"
                f" {one_line(error)}"
            ) from error
    return values


def run_evaluation_callbacks(
    training: TrainingState, phase: str, step: int, result: Evaluation
) -> Evaluation:
    """Call the callbacks after an evaluation; return it with the values that they
    logged."""
    callbacks = training.callbacks
    seed = training.dropout_seed
    run_fields = {"phase": phase, "logs": True}
    logged = dict[str, Tensor]()
    with evaluating(training.model):
        if phase == "validation":
            logged = callbacks.call("on_validation_end", seed, step, **run_fields)
        if result.seen is not None and (run := callbacks.run) is not None:
            source = run._sources.get(phase)
            seen = replace(
                result.seen,
                phase=phase,
                epoch=step / run.steps_per_epoch,
                dataset=None if source is None else source.dataset,
                _source=source,
            )
            logged |= callbacks.call(
                "on_evaluation_end", seed, step, seen, **run_fields
            )
    values = {name: float(value) for name, value in logged.items()}
    return replace(result, values=values | result.values, seen=None)


@torch.no_grad()
def end_training(training: TrainingState, log: Callable[[str], None]) -> None:
    if training.overrides("on_train_end"):
        with evaluating(training.model, may_change=not training.strict):
            seed_draws(training, 0, TRAIN_END)
            training.method.on_train_end(training.model, log)


def joined_batches(batches: Sequence[Any]) -> Any:
    """Join the same structure of several batches: tensors concatenated, all else in
    lists."""

    def join(*parts: Any) -> Any:
        first = parts[0]
        is_tensor = isinstance(first, Tensor) and not first.is_nested and first.dim()
        fits = is_tensor and len({each.shape[1:] for each in parts}) == 1
        return torch.cat(parts) if fits else list(parts)

    return tree_map(join, *batches)


def of_all_samples(rows: Sequence[Row]) -> dict[str, Any]:
    """Join the values of all batches by name, as `Method.compute` describes.

    Pairs of scalars are summed exactly, by `fsum`.
    """
    for row in rows:
        require_same_names(rows[0].values, row.values)
    joined: dict[str, Any] = {}
    for name in rows[0].values:
        batches = [row.values[name] for row in rows]
        if all(isinstance(each, Tensor) for each in batches):
            joined[name] = torch.cat(batches)
        elif all(isinstance(each, Tensor) or is_by_sample(each) for each in batches):
            pairs = [
                (x, torch.ones_like(x)) if isinstance(x, Tensor) else x for x in batches
            ]
            values, weights = map(torch.cat, zip(*pairs, strict=True))
            joined[name] = values if (weights == 1).all() else (values, weights)
        else:
            joined[name] = tuple(
                math.fsum(map(float, each)) for each in zip(*batches, strict=True)
            )
    return joined
