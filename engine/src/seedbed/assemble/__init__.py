"""The parts of a run: device, data sets, order, model, method, optimizers and plan."""

import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed import config, determinism, operations
from seedbed.assemble.model import (
    build_method,
    build_metrics,
    build_model,
    build_optimizers,
    has_lazy_tensors,
    infer_shapes,
    order_weights,
    require_shapes,
    shard,
    take_shapes,
)
from seedbed.assemble.sources import (
    build_order,
    build_sources,
    how_to_load,
    seed_stream,
)
from seedbed.config import Settings
from seedbed.config.settings import Plateau, Trainer
from seedbed.determinism import backends
from seedbed.errors import InputError
from seedbed.methods import Method
from seedbed.names import did_you_mean
from seedbed.pipeline.positions import Order, Position, positions
from seedbed.pipeline.samplers import Sampled
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.streams import StreamOrder
from seedbed.pipeline.tensors import map_tensors
from seedbed.pipeline.workers import load
from seedbed.record import Monitor
from seedbed.training import callbacks, epochs, schedules
from seedbed.training.scaling import Scaler, Unscaled
from seedbed.training.shards import Shards
from seedbed.training.state import Plan, Progress, TrainingState
from seedbed.training.whole import WholeWeights


def prepare_backends(settings: Settings) -> None:
    """Apply the preset's flags; raise InputError if it promises bits and a flag does
    not hold."""
    wanted = settings.determinism
    preset = settings.plain["determinism"]
    if wanted.avx and platform.machine() not in ("x86_64", "AMD64"):
        raise InputError(
            f"determinism.avx: expected an x86-64 processor, got {platform.machine()};"
            " choose determinism=strict"
        )
    determinism.apply(preset)
    differences = determinism.differences(preset)
    if differences and config.promises_bits(wanted.on_nondeterministic):
        raise InputError(
            f"{differences[0]}; unset what overrides it, or choose another preset"
        )


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is an NVIDIA or AMD GPU, or else the
    CPU."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    try:
        torch.empty(0, device=device)
    # PyTorch was built without it, or there is none
    except (AssertionError, RuntimeError):
        raise InputError(
            f"trainer.device: expected a device of this machine, got {name}"
        ) from None
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # which NCCL, threads and `device="cuda"` use
    return device


@dataclass(frozen=True)
class Parts:
    """The parts of a run, and the settings that they were built from."""

    settings: Settings
    sources: Mapping[str, Source]
    order: Order
    training: TrainingState
    plan: Plan
    shards: Shards

    def positions(self, first_step: int, last_step: int) -> Iterator[Position]:
        """Yield the positions of steps first_step + 1 to last_step."""
        repeats = self.plan.trainer.overfit_batches is not None
        return positions(
            self.order, first_step, last_step, self.plan.steps_per_epoch, repeats
        )

    def training_batches(self, progress: Progress) -> Iterator[Batch]:
        """Load this process's shards of each batch, starting after the last step of a
        run.

        With values for epochs, the loading of an epoch begins when the one before has
        been trained.
        """
        first = progress.step
        last = self.plan.total_steps
        size = self.plan.steps_per_epoch
        if not self.training.overrides("epoch_values"):
            yield from self._batches(first, last)
            return
        while first < last:
            self.begin_epoch(progress)
            end = min(last, (first // size + 1) * size)
            yield from self._batches(first, end)
            first = end

    def begin_epoch(self, progress: Progress) -> None:
        """Give the training set and the sampler the values for the epoch of the next
        step."""
        epoch = progress.step // self.plan.steps_per_epoch
        if progress.given.get("epoch") != epoch:
            values = epochs.values_of(self.training, self.shards, progress.step, epoch)
            progress.given = {"epoch": epoch, "values": values}
        source = self.sources["train"]
        # a checkpoint's may be on a GPU
        values = map_tensors(Tensor.cpu, progress.given["values"])
        takers = [source.set_epoch_values(values)]
        if isinstance(self.order, Sampled):
            takers.append(self.order.set_epoch_values(values))
        if not any(takers):
            raise InputError(
                "data.train: expected a data set, or a sampler, with"
                " set_epoch_values(values), to which epoch_values gives them, got"
                f" {type(source.dataset).__name__}"
            )

    def _batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
        data = self.settings.data
        workers = self.settings.data.num_workers
        own_positions = self.shards.divide(self.positions(first_step, last_step))
        streams = 0
        if isinstance(self.order, StreamOrder):
            workers = self.order.workers(workers, self.shards.ranks.count)
            streams = data.streams or 1
        how = how_to_load(self.settings, workers, self.training.device, streams)
        shards = self.shards
        preset = self.settings.plain["determinism"]
        if shards.is_shared:  # they stop together, after a step
            return load(self.sources["train"], own_positions, how, preset)
        stop = shards.asked_to_stop if shards.may_interrupt else None
        return load(self.sources["train"], own_positions, how, preset, stop)


def build_parts(
    settings: Settings,
    device: torch.device,
    shards: Shards,
    sources: Mapping[str, Source] | None = None,
) -> Parts:
    """Build the parts of a run, with new data sets unless `sources` are given."""
    built = sources or build_sources(settings)
    order = build_order(settings, built["train"])
    plan = make_plan(settings, order.steps_per_epoch)
    training = build_training_state(
        settings, device, lambda: built["train"], shards, plan.steps_per_epoch
    )
    return Parts(settings, built, order, training, plan, shards)


def is_fast_channels_last(settings: Settings, device: torch.device) -> bool:
    """Return whether convolutions have kernels for channels-last images.

    cuDNN has them for TF32 and 16 bits; in float32, it would reorder images in each
    layer.
    """
    tf32 = settings.determinism.cudnn["allow_tf32"]
    return (
        device.type != "cuda" or settings.trainer.precision != "float32" or bool(tf32)
    )


def build_training_state(
    settings: Settings,
    device: torch.device,
    samples: Callable[[], Source] | None = None,
    shards: Shards | None = None,
    steps_per_epoch: int = 0,  # where nothing is trained
    saved: Mapping[str, Tensor] | None = None,
) -> TrainingState:
    """Build model, method and optimizers; raise InputError for arguments that a class
    refuses.

    Lazy modules infer their shapes from the first of the training `samples`, or have
    those of `saved` weights, which the caller restores.
    """
    trainer = settings.trainer
    strict = config.promises_bits(settings.determinism.on_nondeterministic)
    model = build_model(settings)
    method = build_method(settings, steps_per_epoch)
    _give_shapes(model, method, settings, samples, saved or {})
    channels_last = settings.determinism.channels_last and is_fast_channels_last(
        settings, device
    )
    if channels_last:
        order_weights(model, device)
    sharding = WholeWeights()
    if shards is not None and shards.is_sharded:
        sharding = shard(model, device, trainer.shard_modules, shards.order_is_fixed)
    else:
        model = model.to(device)
    if strict:
        operations.check_recurrent_dropout(model, device.type)
    optimizers = build_optimizers(settings.plain["optimizer"], model, method)
    schedules.require_none_of_torch(method, *model.modules())
    if trainer.compile:
        mode = None if trainer.compile is True else trainer.compile
        backends.compile_for_each_shape(model, mode)
    metrics = build_metrics(settings.metrics)
    training = TrainingState(
        model=model,
        sharding=sharding,
        optimizers=optimizers,
        method=method,
        device=device,
        autocast=(
            None
            if trainer.precision == "float32"
            else getattr(torch, trainer.precision)
        ),
        scaler=Scaler() if trainer.precision == "float16" else Unscaled(),
        channels_last=channels_last,
        gradient_clip_norm=trainer.gradient_clip_norm,
        dropout_seed=settings.seeds.dropout if settings.determinism.seeding else None,
        strict=strict,
        monitor=monitor_of(trainer, method, metrics),
        metrics=metrics,
        callbacks=callbacks.of_settings(settings.callbacks),
        outputs=_number_of_classes(settings),
        require_flags=partial(
            determinism.require_in_force,
            settings.plain["determinism"] if strict else {},
        ),
    )
    _require_supported(training, trainer)
    return training


def _give_shapes(
    model: nn.Module,
    method: Method,
    settings: Settings,
    samples: Callable[[], Source] | None,
    saved: Mapping[str, Tensor],
) -> None:
    """Give lazy modules the shapes of saved weights, or else those that they infer from
    the first of the training `samples`."""
    take_shapes(model, saved)
    if samples is not None and has_lazy_tensors(model):
        source = samples()
        batch = source[
            Position(0, np.arange(min(settings.data.batch_size, len(source))))
        ]
        seed_stream(settings, "init", 1)
        infer_shapes(model, method, batch)
    require_shapes(model)


def _number_of_classes(settings: Settings) -> int | None:
    outputs = settings.plain["data"].get("outputs")
    return outputs if isinstance(outputs, int) else None


def _require_supported(training: TrainingState, trainer: Trainer) -> None:
    """Raise InputError for what gradient scaling or sharding cannot serve."""
    if trainer.precision == "float16":
        _require_scalable(training)
    if training.sharding.is_sharded:
        from seedbed.distributed.sharding import require_supported  # a slow import

        require_supported(training, trainer)


def monitor_of(trainer: Trainer, method: Method, metrics: Mapping[str, Any]) -> Monitor:
    """Return the value that says which weights are better: the trainer's, or else the
    method's.

    Raises:
        InputError: nothing says in which direction the value is better.
    """
    method_monitor = method.monitor.removeprefix("validation_")
    name = (
        method_monitor
        if trainer.monitor is None
        else trainer.monitor.removeprefix("validation_")
    )
    if trainer.mode is not None:
        return Monitor(name, trainer.mode == "max")
    known = {
        key: getattr(metric, "higher_is_better", None)
        for key, metric in metrics.items()
    }
    if method.task is not None:
        known[method.task.metric_name] = method.task.higher_is_better
    known |= {"loss": False, method_monitor: method.mode == "max"}
    if known.get(name) is None:
        named = ", ".join(f"validation_{each}" for each in known)
        raise InputError(
            f"trainer.mode: expected min or max, since nothing says which {name} is"
            " better, got null; say which, or follow one of"
            f" {named}{did_you_mean(name, known)}"
        )
    return Monitor(name, bool(known[name]))


def _require_scalable(training: TrainingState) -> None:
    """Raise InputError for what gradient scaling cannot serve."""
    if half := [
        name for name, p in training.to_train.items() if p.dtype is torch.float16
    ]:
        raise InputError(
            f"model.{half[0]}: expected float32 with trainer.precision=float16, got"
            " float16; leave out .half()"
        )
    for name, optimizer in training.optimizers.items():
        if training.needs_closure[name] or training.method.create_graph:
            raise InputError(
                "trainer.precision: expected float32 or bfloat16 with an optimizer"
                " whose step() needs a closure (or create_graph), got float16 with"
                f" {type(optimizer).__name__}"
            )


def make_plan(settings: Settings, steps_per_epoch: int) -> Plan:
    trainer = settings.trainer
    every_steps = settings.fingerprint.every_steps
    for key in ("limit_train_batches", "overfit_batches"):
        batches = getattr(trainer, key) or trainer.accumulate
        if batches < trainer.accumulate:
            raise InputError(
                f"trainer.{key}: expected at least trainer.accumulate"
                f" ({trainer.accumulate}), the batches of a step, got {batches}"
            )
        if getattr(trainer, key) is not None:
            steps_per_epoch = min(steps_per_epoch, batches // trainer.accumulate)
    total_steps = trainer.max_epochs * steps_per_epoch
    total_steps = min(total_steps, trainer.max_steps or total_steps)
    factor = schedules.of_settings(
        settings.plain["schedule"], total_steps, steps_per_epoch
    )
    plateau = settings.schedule if isinstance(settings.schedule, Plateau) else None
    return Plan(
        total_steps, steps_per_epoch, trainer, every_steps, factor, plateau=plateau
    )
