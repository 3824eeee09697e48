"""From the settings to each part of a run: device, shards, data sets, model, optimizer, plan."""

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from seedbed import config, determinism, rng
from seedbed.config import build
from seedbed.data.imports import seed_imports
from seedbed.data.positions import Order, Position, Shuffled
from seedbed.data.source import Source
from seedbed.data.streams import StreamSource
from seedbed.data.workers import Loading
from seedbed.errors import InputError
from seedbed.methods import Method
from seedbed.names import SPLITS
from seedbed.operations import refusals
from seedbed.training import callbacks, metrics, schedules
from seedbed.training.shards import Others, Shards, SharedShards
from seedbed.training.state import Plan, TrainingState
from seedbed.training.unchanged import evaluating
from seedbed.worker import methods, order

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Sources:
    """The data sets of a run, as functions from positions to batches."""

    train: Source
    validation: Source
    test: Source


def prepare_backends(preset: Settings) -> None:
    """Apply a preset's flags; where it asks for errors, raise InputError if they do not hold."""
    if preset.get("avx") and platform.machine() not in ("x86_64", "AMD64"):
        raise InputError(
            f"determinism.avx: expected an x86-64 processor, which determinism={preset['name']} is "
            f"for, got {platform.machine()}; choose determinism=strict"
        )
    determinism.apply(preset)
    differences = determinism.differences(preset)
    if differences and config.promises_bits(preset["on_nondeterministic"]):
        raise InputError(f"{differences[0]}; unset what overrides it, or choose another preset")


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU of NVIDIA's or AMD's if there is one.

    A GPU becomes this process's current one: NCCL's sends and receives, threads and code that
    says `device="cuda"` would take the first one otherwise.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available() and (device.index or 0) < count,
        "mps": torch.backends.mps.is_available(),
    }[device.type]
    if not there:
        raise InputError(
            f"trainer.device: expected a device that is there, got {name}; try trainer.device=auto"
        )
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def cut_batches(
    trainer: Settings,
    stop_requested: Callable[[], bool] = lambda: False,
    others: Others | None = None,
) -> Shards:
    """Return how batches are cut into shards, and which of them this process works on.

    Args:
        others: what connects this process to the others of the run; None if it is alone.
    """
    if trainer["shards"] == 1:
        return Shards(stop_requested)
    in_tree = trainer["reduce"] == "tree"
    return SharedShards(trainer["shards"], stop_requested, others, in_tree)


def build_sources(settings: Settings) -> Sources:
    """Build the data sets; without one to test on, the validation set is it."""
    return Sources(*(build_source(settings, split) for split in SPLITS))


def build_source(settings: Settings, split: str, seen_as: str | None = None) -> Source:
    """Build one of the data sets; without one to test on, the validation set is it.

    Args:
        seen_as: the split whose batches and randomness its samples get, if that is another one:
            training samples are evaluated as those of validation.
    """
    data = settings["data"]
    spec = data.get(split) or data["validation"]
    seed, seeded = settings["seeds"]["augment"], settings["determinism"]["seeding"]
    if seeded:  # a data set may draw when it is built, and its module when it is imported
        seed_imports(settings["seeds"]["data"])
        position = SPLITS.index(split)
        rng.seed_globals(rng.key(settings["seeds"]["data"], "data", position))
    dataset = build.build(spec, f"data.{split}")
    role = seen_as or split
    iterable = order.is_iterable(dataset)
    if iterable:
        dataset = order.as_streams(dataset, data, split, role, seed)
    if len(dataset) == 0:
        raise InputError(f"data.{split}: expected at least one sample, got none")
    collate = collate_for(data, role, dataset)
    one_thread = data.get("loading_threads", 1) != "all"
    kind = StreamSource if iterable else Source
    return kind(dataset, role, seed, collate, seeded, one_thread)


def build_order(settings: Settings, source: Source) -> Order:
    """Return the order of the training samples, the same in every process of a run."""
    data, samples = settings["data"], len(source)
    if any(data.get(key) is not None for key in ("sampler", "streams", "samples_per_epoch")):
        return order.build(settings, source)
    if data["batch_size"] > samples:
        raise order.too_large(data["batch_size"], samples)
    return Shuffled(samples, data["batch_size"], settings["seeds"]["order"])


def collate_for(data: Settings, split: str, dataset: Any) -> Callable[[list[Any]], Any] | None:
    """Return what makes batches of a data set's samples; None for torch's default.

    `data.training_collate` is for training alone, and goes before `data.collate`. Each is the name
    of a function, or a mapping with a `_target_` that is built.
    """
    own = split == "train" and data.get("training_collate") is not None
    key = "training_collate" if own else "collate"
    spec = data.get(key)
    if spec is None:
        return None
    if hasattr(dataset, "fetch"):
        raise InputError(
            f"data.{key}: expected a data set without fetch, got {type(dataset).__name__}, which "
            "makes its batches itself; let its fetch do it, or load sample by sample"
        )
    if isinstance(spec, str):
        return build.resolve(spec, f"data.{key}")  # type: ignore[no-any-return]
    return build.build(spec, f"data.{key}")  # type: ignore[no-any-return]


def build_training_state(
    settings: Settings, device: torch.device, source: Source | None = None
) -> TrainingState:
    """Build model, method and optimizers.

    The weights are drawn on the CPU, so every device has the same. (CUDA's generator
    depends on the GPU's number of multiprocessors.) A model that comes in evaluation mode as a
    whole is to be trained; a part in evaluation mode is frozen, and stays so.

    Args:
        source: of the training samples, of which lazy modules take their shapes.
    """
    preset, trainer = settings["determinism"], settings["trainer"]
    if preset["seeding"]:
        seed_imports(settings["seeds"]["data"])
        rng.seed_globals(rng.key(settings["seeds"]["init"], "init"))
    with refusals.explained():  # some constructors run the model
        model: nn.Module = build.build(settings["model"], "model")
    if not model.training:
        model.train()
    method = methods.build_method(settings)
    with refusals.explained(model):
        materialize(model, method, settings, source)
    # On a CPU, the order of the images is enough: oneDNN brings weights into one of its own.
    if preset["channels_last"] and device.type != "cpu":
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.dim() == 4:  # `model.to` would refuse those with five
                tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)
    model = model.to(device)
    if config.promises_bits(preset["on_nondeterministic"]):
        refusals.check_recurrent_dropout(model, device.type)
    autocast = trainer["precision"] == "bfloat16"
    refusals.check_precision(model, device.type, autocast, determinism.computes_bfloat16())
    if not trainer["compile"]:  # a compiler would see the flag that this switches
        determinism.leave_recurrent_unfilled(model)
    optimizers = methods.build_optimizers(method, model, settings)
    if trainer["compile"]:
        determinism.compile_for_each_shape(model)
    return TrainingState(
        model=model,
        optimizers=optimizers,
        method=method,
        device=device,
        autocast=autocast,
        channels_last=preset["channels_last"],
        gradient_clip_norm=trainer["gradient_clip_norm"],
        dropout_seed=settings["seeds"]["dropout"] if preset["seeding"] else None,
        strict=config.promises_bits(preset["on_nondeterministic"]),
        monitor=trainer.get("monitor"),
        mode=trainer.get("mode"),
        metrics=metrics.of_settings(settings.get("metrics") or {}),
        callbacks=callbacks.of_settings(settings.get("callbacks") or {}),
    )


def materialize(
    model: nn.Module, method: Method, settings: Settings, source: Source | None
) -> None:
    """Let lazy modules take their shapes from a batch, and draw their weights; the rest stays.

    Raises:
        InputError: a module is lazy still.
    """
    if source is not None and any(map(is_lazy, (*model.parameters(), *model.buffers()))):
        ids = np.arange(min(settings["data"]["batch_size"], len(source)))
        batch = source[Position(0, ids)]
        if settings["determinism"]["seeding"]:
            rng.seed_globals(rng.key(settings["seeds"]["init"], "init", 1))
        with torch.no_grad(), evaluating(model):
            if type(method).validation_step is Method.validation_step:
                model(batch.inputs)
            else:
                method.validation_step(model, batch)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise InputError(
                f"model.{name}: expected a shape by the first forward pass, got none; say it in "
                "the model, or use the module in evaluation mode too"
            )


def make_plan(settings: Settings, steps_per_epoch: int) -> Plan:
    """Work out when things happen."""
    trainer = settings["trainer"]
    total_steps = trainer["max_epochs"] * steps_per_epoch
    if trainer["max_steps"] is not None:
        total_steps = min(total_steps, trainer["max_steps"])
    return Plan(
        total_steps=total_steps,
        steps_per_epoch=steps_per_epoch,
        log_every_steps=trainer["log_every_steps"],
        validate_every_epochs=trainer["validate_every_epochs"],
        checkpoint_every_steps=trainer["checkpoint_every_steps"],
        fingerprint_every_steps=settings["fingerprint"]["every_steps"],
        early_stopping_patience=trainer["early_stopping_patience"],
        learning_rate_factor=schedules.of_settings(settings["schedule"], total_steps),
    )


def loading(settings: Settings, device: torch.device) -> Loading:
    """Return how training batches are loaded."""
    data = settings["data"]
    return Loading(
        num_workers=data["num_workers"],
        persistent_workers=data["persistent_workers"],
        prefetch_factor=data["prefetch_factor"],
        start_method=data["start_method"],
        pin_memory=device.type == "cuda",
    )
