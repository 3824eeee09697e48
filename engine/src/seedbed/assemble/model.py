"""The model, method, optimizers and metrics of a run, each built from its part of the
settings."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch_deterministic_kernels as kernels
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seedbed import operations, rng, tasks
from seedbed.assemble.sources import seed_stream
from seedbed.config import Settings, build
from seedbed.errors import InputError
from seedbed.methods import Method, require_hooks
from seedbed.pipeline.source import Batch
from seedbed.training.evaluate import evaluating
from seedbed.training.whole import WholeWeights


def build_model(settings: Settings) -> nn.Module:
    """Build the model on the CPU, in training mode.

    The weights are drawn on the CPU, so they are the same for every device. (CUDA's
    generator depends on the GPU's number of multiprocessors.) A model that is in
    evaluation mode as a whole is put into training mode; else a submodule in evaluation
    mode is frozen and stays so.
    """
    seed_stream(settings, "init")
    with operations.explained():  # some constructors run the model
        model: nn.Module = build.build(settings.plain["model"], "model")
    rng.warn_if_reseeded(f"model: {settings.model._target_}", "init")
    kernels.locate(model, internal=["seedbed"])
    if not model.training:
        model.train()
    return model


def build_method(settings: Settings, steps_per_epoch: int) -> Method:
    """Build the method, and the task of the data."""
    seed_stream(settings, "init", 2)
    method: Method = build.build(settings.plain["method"], "method")
    rng.warn_if_reseeded(f"method: {settings.method._target_}", "init")
    require_hooks("method", method, Method)
    if settings.data.task is not None:
        method.task = tasks.make(settings.data.task)
    method.steps_per_epoch = steps_per_epoch
    return method


def build_optimizers(
    optimizer: Mapping[str, Any], model: nn.Module, method: Method
) -> dict[str, torch.optim.Optimizer]:
    """Return the optimizers by name, which the method makes from those of the
    configuration."""

    def make(parameters: Iterable[Any], **overrides: Any) -> torch.optim.Optimizer:
        entries = [_without_names(entry) for entry in parameters]
        trained = [
            entry for entry in entries if isinstance(entry, dict) or entry.requires_grad
        ]
        return build.build(  # type: ignore[no-any-return]
            {**optimizer, **overrides}, "optimizer", trained
        )

    made = method.configure_optimizers(model, make)
    return (
        {"optimizer": made} if isinstance(made, torch.optim.Optimizer) else dict(made)
    )


def _without_names(entry: Any) -> Any:
    """Strip the names of (name, parameter) pairs; from a group, also remove frozen
    parameters."""
    if isinstance(entry, Mapping):
        inside = entry["params"]
        several = [inside] if isinstance(inside, Tensor) else list(inside)
        parameters = [_without_names(each) for each in several]
        return {**entry, "params": [p for p in parameters if p.requires_grad]}
    return entry[1] if isinstance(entry, tuple) else entry


def build_metrics(specs: Mapping[str, Any]) -> dict[str, Any]:
    """Build the metrics; each process has the outputs of all, so there is nothing to
    sync."""
    return {
        name: build.build({**spec, "sync_on_compute": False}, f"metrics.{name}")
        for name, spec in specs.items()
    }


def has_lazy_tensors(model: nn.Module) -> bool:
    return any(map(is_lazy, (*model.parameters(), *model.buffers())))


def take_shapes(model: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Give lazy parameters and buffers the shapes of saved ones."""
    tensors: dict[str, Any] = {
        **dict(model.named_parameters()),
        **dict(model.named_buffers()),
    }
    for name, shaped in saved.items():
        if name in tensors and is_lazy(tensors[name]):
            tensors[name].materialize(shaped.shape)


def infer_shapes(model: nn.Module, method: Method, batch: Batch) -> None:
    """Let lazy modules infer their shapes in a forward pass, in evaluation mode."""
    with operations.explained(model), torch.no_grad(), evaluating(model):
        if type(method).validation_step is Method.validation_step:
            model(batch.inputs)
        else:
            method.validation_step(model, batch)


def require_shapes(model: nn.Module) -> None:
    """Raise InputError for a parameter or buffer that is lazy after the first forward
    pass."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):  # its weights would be drawn in the middle of training
            raise InputError(
                f"model.{name}: expected a shape after the first forward pass, got"
                " none; set it in the model, or use the module in evaluation mode too"
            )


def order_weights(model: nn.Module, device: torch.device) -> None:
    """Store the weights of 2-D convolutions in the memory order of channels-last
    images.

    On a CPU, channels-last images are enough: oneDNN reorders the weights itself.
    """
    if device.type == "cpu":
        return
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.dim() == 4:  # `model.to` would raise for 5-D tensors
            tensor.data = tensor.data.contiguous(memory_format=torch.channels_last)


def shard(
    model: nn.Module,
    device: torch.device,
    patterns: Sequence[str] | None,
    in_tree: bool,
) -> WholeWeights:
    """Shard a model over the processes, in place."""
    from seedbed.distributed.sharding import Sharding  # a slow import

    return Sharding(model, device, patterns, in_tree)
