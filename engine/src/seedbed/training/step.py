"""One step: each update's gradients over all shards, clipping, the optimizer,
fingerprints."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from seedbed import dtensors, fingerprint, rng
from seedbed.errors import InputError
from seedbed.names import PLAN, STEP_END, UPDATE
from seedbed.pipeline.source import Batch
from seedbed.pipeline.tensors import move
from seedbed.training.callbacks import scalars_of
from seedbed.training.optimizers import may_draw
from seedbed.training.shards import Shards
from seedbed.training.stages import Hashed, Unhashed
from seedbed.training.state import Passes, StepResult, TrainingState, Update
from seedbed.training.unchanged import Watched

_HALVES = (torch.float16, torch.bfloat16)


def train_step(
    training: TrainingState,
    batches: Sequence[Batch],
    step: int,
    shards: Shards,
    # whether to return those of method and callbacks in addition to the loss
    with_values: bool,
    # computes the fingerprints of the step, if it has any
    hasher: fingerprint.Hasher | None,
) -> StepResult:
    """Take one step, with one batch per shard of `shards.mine`."""
    stages = Hashed(hasher) if hasher else Unhashed()
    batches = [to_device(batch, training) for batch in batches]
    shard_hashes = stages.add_batches(batches, shards)
    logged: dict[str, Tensor] = {}
    logged_by_callbacks: dict[str, Tensor] = {}
    updates = updates_of(training, step)
    for update in updates:
        run_passes = partial(
            mean_of_shards, training, batches, update, shards, with_values
        )
        passes, shard_hashes = run_passes(shard_hashes)
        training.note_gradients(update, passes.used)
        loss = passes.values.pop("loss")
        stages.add_update(shard_hashes, loss, passes.gradients, len(updates))
        shard_hashes = []
        logged_by_callbacks |= show_gradients(
            training, update, passes.gradients, with_values
        )
        if training.scaler.accepts(passes.gradients):
            apply_update(training, update, passes, loss, partial(run_passes, []))
        logged |= named_loss(training, update, loss) | passes.values
    logged |= training.scaler.end_step(step)
    end_step(training, step, shards)
    logged_by_callbacks |= training.callbacks.call(
        "on_step_end", training.dropout_seed, step
    )
    stages.add_state(training)
    values = logged | logged_by_callbacks if with_values else None
    return StepResult(loss, values, stages.hashes())


def updates_of(training: TrainingState, step: int) -> list[Update]:
    if training.overrides("trainable") or training.overrides("updates"):
        seed_draws(training, step, PLAN)  # in case they draw, which they should not
    return training.updates(step)


def show_gradients(
    training: TrainingState,
    update: Update,
    gradients: Sequence[Tensor],
    with_values: bool,
) -> dict[str, Tensor]:
    """Show an update's gradients to the callbacks; return what they log."""
    callbacks = training.callbacks
    if callbacks.run is None:
        return {}
    by_name = dict(zip(update.parameters, gradients, strict=True))
    run_fields = {"phase": "train", "optimizer": update.optimizer, "logs": with_values}
    hook = "on_before_optimizer_step"
    return callbacks.call(
        hook, training.dropout_seed, update.step, by_name, **run_fields
    )


def named_loss(
    training: TrainingState, update: Update, loss: Tensor
) -> dict[str, Tensor]:
    """Return an update's loss under its optimizer's name, if there are several
    optimizers."""
    return {f"{update.optimizer}_loss": loss} if len(training.optimizers) > 1 else {}


def end_step(training: TrainingState, step: int, shards: Shards) -> None:
    """Let the method change the model after the step's updates, in all processes
    alike."""
    if not training.overrides("on_step_end"):
        return
    shards.require_kept(training, training.to_train)
    seed_draws(training, step, STEP_END)
    with torch.no_grad():
        training.method.on_step_end(training.model, step)
    shards.keep(training)


def mean_of_shards(
    training: TrainingState,
    batches: Sequence[Batch],
    update: Update,
    shards: Shards,
    with_values: bool,
    hashes: Sequence[Tensor],
) -> tuple[Passes, list[Tensor]]:
    """Return the (weighted) mean over all shards, and `hashes` summed over all
    processes."""
    if shards.count == 1:
        return _of_one_shard(training, batches[0], update, with_values), list(hashes)
    names: list[str] = []
    dtypes: list[torch.dtype] = []

    def parts() -> Iterator[list[Tensor]]:
        for shard, batch in zip(shards.mine, batches, strict=True):
            passes = forward_and_backward(training, batch, update, shard, with_values)
            names[:] = names or passes.values
            require_same_names(names, passes.values)
            if with_values and shard == shards.mine[-1]:
                for theirs in shards.gather(lambda: names):
                    require_same_names(names, theirs)
            dtypes[:] = [t.dtype for t in (*passes.gradients, *passes.values.values())]
            # On the CPU, so that a single process does not wait for its GPU.
            yield [*_times_weight(passes), torch.tensor(passes.used).long()]

    tensors = shards.reduce(parts(), hashes)
    end = len(tensors) - len(hashes)
    *means, used = tensors[:end]
    if "weight" in names:  # the last one
        names.pop()
        weight = means.pop()
        factor = torch.where(weight == 0, 0, 1 / weight)
        start = len(means) - len(names)
        means = [
            (
                mean
                if number >= start and _is_pair(mean)
                else _product(mean, factor).to(dtype)
            )
            for number, (mean, dtype) in enumerate(zip(means, dtypes[:-1], strict=True))
        ]
    start = len(means) - len(names)
    by_name = _divided(dict(zip(names, means[start:], strict=True)))
    return Passes(means[:start], by_name, [n > 0 for n in used.tolist()]), tensors[end:]


def _of_one_shard(
    training: TrainingState, batch: Batch, update: Update, with_values: bool
) -> Passes:
    passes = forward_and_backward(training, batch, update, 0, with_values)
    weight = passes.values.pop("weight", None)
    # The default's gradients are zero if it is; those of a method may be 0 / 0.
    if weight is not None and training.overrides("training_step"):
        passes.values["loss"] = or_zeros(passes.values["loss"], weight)
        passes = passes._replace(
            gradients=[or_zeros(g, weight) for g in passes.gradients]
        )
    return passes._replace(values=_divided(passes.values))


def _times_weight(passes: Passes) -> list[Tensor]:
    """Return the gradients and values of a shard, times its weight if it has one."""
    weight = passes.values.get("weight")
    if weight is None:
        return [*passes.gradients, *passes.values.values()]
    # FSDP2 has summed gradients of sharded parameters, which it weighted itself.
    gradients = [
        g if dtensors.is_sharded(g) else weighted(g, weight) for g in passes.gradients
    ]
    *values, _ = passes.values.values()
    return [
        *gradients,
        *(v if _is_pair(v) else weighted(v, weight) for v in values),
        weight,
    ]


def _is_pair(value: Tensor) -> bool:
    """Return whether a value of a training step is a pair (sum, count), else a
    scalar."""
    return value.dim() == 1


def _divided(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: v[0] / v[1] if _is_pair(v) else v for name, v in values.items()}


def forward_and_backward(
    training: TrainingState, batch: Batch, update: Update, shard: int, with_values: bool
) -> Passes:
    """Run one shard's passes; `values` has the loss, others if requested, and the
    weight if any."""
    seed = partial(seed_draws, training, update.step, shard, update.number)
    take = partial(_seeded_passes, training, update, with_values=with_values)
    if training.graphs is not None:
        passes: Passes = training.graphs.passes(seed, take, batch, with_values)
        _assign(update, passes)
        return passes
    seed()
    return take(batch)


def _seeded_passes(
    training: TrainingState, update: Update, batch: Batch, with_values: bool
) -> Passes:
    with training.autocasting():
        returned = training.method.training_step(
            training.model, batch, update.optimizer
        )
    if update.step == 1:
        name = type(training.method).__name__
        rng.warn_if_reseeded(f"model or method: {name}.training_step", "dropout")
    others: dict[str, Any] = dict(
        returned if isinstance(returned, Mapping) else {"loss": returned}
    )
    require_loss(training, others.get("loss"))
    loss = others.pop("loss")
    weight = others.pop("weight", None)
    if weight is not None:
        # Copied, as are values below: shards are summed in place, and a method may
        # return a buffer of the model, or write to its own tensors later.
        weight = (
            torch.as_tensor(weight, dtype=torch.float32, device=loss.device)
            .detach()
            .clone()
        )
    parameters = list(update.parameters.values())
    for parameter in parameters:
        parameter.grad = None
    training.sharding.prepare(weight)
    # Sharded parameters are others in passes, where they are whole.
    takes_all = training.takes_all[update.optimizer] or training.sharding.is_sharded
    inputs = None if takes_all else parameters
    scaled: Any = training.scaler.scaled(loss)
    scaled.backward(inputs=inputs, create_graph=training.method.create_graph)
    training.scaler.unscale(parameters)
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    used = training.sharding.used(update.parameters)
    scalars = {"loss": loss.detach().clone()}
    if with_values:
        with torch.no_grad():
            scalars |= scalars_of(training.model, others, gradients, training.device)
    return Passes(
        gradients, scalars if weight is None else scalars | {"weight": weight}, used
    )


def _assign(update: Update, passes: Passes) -> None:
    """Give parameters their gradients; None to those that no sample used."""
    parameters = update.parameters.values()
    given = zip(parameters, passes.gradients, passes.used, strict=True)
    for parameter, gradient, used in given:
        parameter.grad = gradient if used else None


def require_loss(training: TrainingState, loss: Any) -> None:
    """Raise InputError for a loss of a training step that has no gradients."""
    name = f"{type(training.method).__name__}.training_step"
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = (
            f"shape {tuple(loss.shape)}"
            if isinstance(loss, Tensor)
            else type(loss).__name__
        )
        advice = (
            "end it with a return" if loss is None else "return a tensor of one number"
        )
        raise InputError(
            f"method: expected a scalar loss from {name}, alone or as loss in a"
            f" mapping, got {got}; {advice}"
        )
    if not loss.requires_grad:
        raise InputError(
            f"method: expected a loss that depends on parameters, got one of {name}"
            " without a gradient; look for detach(), .data, argmax, NumPy and"
            " torch.no_grad() between the parameters and the loss"
        )


def apply_update(
    training: TrainingState,
    update: Update,
    passes: Passes,
    loss: Tensor,
    again: Callable[[], tuple[Passes, Any]],
) -> None:
    """Clip the gradients and take the optimizer's step; one with a closure repeats the
    passes."""
    optimizer = training.optimizers[update.optimizer]
    parameters = list(update.parameters.values())

    def assign_gradients(passes: Passes) -> None:
        # With one shard, too: a callback may have cleared or replaced the gradients.
        _assign(update, passes)
        if training.gradient_clip_norm is not None:
            training.sharding.clip(parameters, training.gradient_clip_norm)

    def watched() -> Watched:
        tensors = [tensor for p in parameters for tensor in (p, p.grad)]
        return Watched(tensor.detach() for tensor in tensors if tensor is not None)

    assign_gradients(passes)
    if may_draw(optimizer):  # the same in all processes
        seed_draws(training, update.step, UPDATE, update.number)
    if not training.needs_closure[update.optimizer]:
        _step_once(training, optimizer, parameters)
        return
    known = [loss]
    at_first = watched().state()

    def closure() -> Tensor:
        # nothing has changed since the first passes
        if known and watched().state() == at_first:
            return known.pop()
        repeated, _ = again()
        assign_gradients(repeated)
        return repeated.values["loss"]

    optimizer.step(closure)  # type: ignore[arg-type]


def _step_once(
    training: TrainingState,
    optimizer: torch.optim.Optimizer,
    parameters: Sequence[torch.nn.Parameter],
) -> None:
    """Take the step of an optimizer without a closure."""
    method = training.method
    try:
        optimizer.step()
    except RuntimeError as error:
        if method.create_graph or "does not require grad" not in str(error):
            raise
        raise InputError(
            f"method: expected create_graph = True in {type(method).__name__} for"
            f" {type(optimizer).__name__}, which differentiates gradients, got False"
        ) from error
    for parameter in parameters if method.create_graph else ():
        parameter.grad = None  # frees the graph


def weighted(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return a slice's part of a weighted sum; in float32 for float16, which would
    overflow."""
    dtype = torch.float32 if tensor.dtype is torch.float16 else tensor.dtype
    return or_zeros(_product(tensor, weight).to(dtype), weight)


def or_zeros(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return zeros in place of a tensor if the weight is 0, as the mean over no tokens
    is NaN."""
    if tensor.is_sparse:
        values = or_zeros(tensor._values(), weight)
        indices = tensor._indices()
        is_coalesced = tensor.is_coalesced()
        return torch.sparse_coo_tensor(
            indices,
            values,
            tensor.shape,
            is_coalesced=is_coalesced,
            check_invariants=False,
        )
    return tensor.new_zeros(()).where(weight == 0, tensor)


def _product(tensor: Tensor, number: Tensor) -> Tensor:
    """Return a tensor times a float32 scalar, in float32 if the tensor has 16 bits."""
    return (tensor.float() if tensor.dtype in _HALVES else tensor) * number


def require_same_names(names: Iterable[str], others: Iterable[str]) -> None:
    """Raise InputError unless names and their order agree, so that no values are mixed
    up."""
    if list(names) != list(others):
        raise InputError(
            "method: expected the same names of values for all shards and batches, got "
            f"{', '.join(others)} after {', '.join(names)}"
        )


def to_device(
    batch: Batch, training: TrainingState, are_targets_used: bool = True
) -> Batch:
    """Move a batch to the device, with PyTorch's alignment, and images in
    `channels_last` if set; refuse targets that the task does not take.

    NumPy aligns memory to 16 bytes, PyTorch to 64, and MKL promises equal bits only for
    equally aligned memory.
    """

    def arrange(tensor: Tensor) -> Tensor:
        is_dense = tensor.layout is torch.strided and tensor.device.type == "cpu"
        if is_dense and tensor.data_ptr() % 64:
            tensor = tensor.clone()
        if not training.channels_last or tensor.dim() != 4 or tensor.is_nested:
            return tensor
        # With explicit strides: images of one channel are contiguous in both orders,
        # and convolutions would take them for (B, C, H, W).
        _, channels, height, width = tensor.shape
        strides = (height * width * channels, 1, width * channels, channels)
        tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor.as_strided(tensor.shape, strides)

    if are_targets_used:
        training.require_targets(batch)
    return Batch(
        batch.ids, *move((batch.inputs, batch.targets), training.device, arrange)
    )


def seed_draws(training: TrainingState, step: int, work: int, update: int = 0) -> None:
    """Seed the global generators, from which a model, method or optimizer may draw.

    `work` is a shard, the first sample of an evaluation batch, or e.g. `names.UPDATE`.
    """
    if training.dropout_seed is not None:
        position = (step, work, update) if update else (step, work)
        rng.seed_globals(rng.key(training.dropout_seed, "dropout", *position))
