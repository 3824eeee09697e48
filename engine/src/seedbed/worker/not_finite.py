"""Why a loss is not finite: the data, the first forward pass, or what training made of the weights.

A batch is a function of its step, so it is loaded again. Before any update, so are the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from seedbed.data.positions import evaluation_positions, positions
from seedbed.data.source import Batch
from seedbed.data.streams import StreamSource
from seedbed.data.tensors import tensors_of
from seedbed.errors import InputError
from seedbed.training import trainable
from seedbed.training.state import TrainingState
from seedbed.training.step import seed_draws, to_device
from seedbed.training.unchanged import evaluating
from seedbed.worker import assemble
from seedbed.worker.parts import Parts
from seedbed.worker.sources import build_order, build_source


class NotFinite(InputError):
    """A loss, or a weight, is not finite; `phase` and `step` tell of which evaluation or step."""

    def __init__(self, message: str, phase: str, step: int) -> None:
        super().__init__(message)
        self.phase, self.step = phase, step


def explained(error: NotFinite, parts: Parts) -> InputError:
    """Return the error with its cause, if that can be found by doing the work once more."""
    find = _in_training if error.phase == "train" else _in_validation
    try:
        found = find(parts, error.step)
    except Exception:  # whatever users' code provokes the second time; memory for another model
        found = None
    return error if found is None else InputError(found)


def _in_training(parts: Parts, step: int) -> str | None:
    """Return what is not finite in the batch of a step or, of the first, in its forward pass."""
    settings, shards = parts.settings, parts.shards.count
    source = build_source(settings, "train")  # anew: loader workers may share what the other opened
    if isinstance(source, StreamSource) and step > 1:
        return None  # it would be read from its beginning
    [position] = positions(build_order(settings, source), step - 1, step)
    size = len(position.ids) // shards
    slices = [position.cut(n * size, (n + 1) * size) for n in range(shards)]
    for each in slices:
        if found := _in_batch("data.train", source[each], f"step {step}"):
            return found
    if step > 1:
        return None
    training = assemble.build_training_state(settings, parts.training.device, source)
    for name, parameter in training.model.named_parameters():
        if not parameter.isfinite().all():
            return (
                f"model.{name}: expected finite weights before the first update, got others; look "
                "at how they are drawn or loaded"
            )
    found = _in_forward_pass(training, [source[each] for each in slices])
    look = (
        "look for divisions, logarithms and roots there, before optimizer.lr: it had no part in it"
    )
    return found and f"{found} in the first forward pass, before any update; {look}"


def _in_forward_pass(training: TrainingState, batches: list[Batch]) -> str | None:
    trainable.choose(training, 1)
    names = training.method.updates(1, list(training.optimizers))
    for shard, batch in enumerate(batches):
        for number, name in enumerate(names):
            seed_draws(training, 1, shard, number)
            with _first_of(training.model) as first, _autocast(training):
                training.method.training_step(training.model, to_device(batch, training), name)
            if first:
                return _named(first[0])
    return None


def _in_validation(parts: Parts, step: int) -> str | None:
    """Return what is not finite in the validation set, or in an evaluation of it."""
    source, training = build_source(parts.settings, "validation"), parts.training
    weights_are_finite = all(bool(p.isfinite().all()) for p in training.model.parameters())
    for position in evaluation_positions(len(source), parts.settings.data.eval_batch_size):
        batch = source[position]
        if found := _in_batch("data.validation", batch, f"the validation after step {step}"):
            return found
        if weights_are_finite:
            seed_draws(training, 0, int(batch.ids[0]))
            moved, method = to_device(batch, training), training.method
            with (
                _first_of(training.model) as first,
                _autocast(training),
                torch.no_grad(),
                evaluating(training.model),
            ):
                method.validation_step(training.model, moved)
            if first:
                return (
                    f"{_named(first[0])} in the validation after step {step}, of finite samples "
                    "and with finite weights; look for divisions, logarithms and roots there"
                )
    return None


def _in_batch(key: str, batch: Batch, where: str) -> str | None:
    """Return a line on the first number of a batch that is not finite."""
    for name, nest in (("inputs", batch.inputs), ("targets", batch.targets)):
        for tensor in tensors_of(nest):
            if not _bad(tensor):
                continue
            index = _is_bad(tensor).nonzero()[0].tolist()
            sample = (
                f" of sample {int(batch.ids[index[0]])}" if len(tensor) == len(batch.ids) else ""
            )
            column = f" in column {index[1]}" if len(index) == 2 else ""
            column = f" at {index[1:]}" if len(index) > 2 else column
            return (
                f"{key}: expected finite {name}, got {float(tensor[tuple(index)])}{column}{sample}"
                f", in {where}; mend the samples, or leave such samples out"
            )
    return None


@contextmanager
def _first_of(model: nn.Module) -> Iterator[list[tuple[str, nn.Module, float]]]:
    """Yield a list that gets the first module whose output is not finite, by its path."""
    first: list[tuple[str, nn.Module, float]] = []
    paths = {id(module): path for path, module in model.named_modules()}

    def look(module: nn.Module, _inputs: Any, output: Any) -> None:
        bad = [] if first else [tensor for tensor in tensors_of(output) if _bad(tensor)]
        if bad:
            value = float(bad[0].detach()[_is_bad(bad[0])][0])
            first.append((paths[id(module)], module, value))

    hooks = [module.register_forward_hook(look) for module in model.modules()]
    try:
        yield first
    finally:
        for hook in hooks:
            hook.remove()


def _named(first: tuple[str, nn.Module, float]) -> str:
    path, module, value = first
    key = f"model.{path}" if path else "model"
    return f"{key}: expected finite outputs of {type(module).__name__}, got {value}"


def _autocast(training: TrainingState) -> Any:
    return torch.autocast(training.device.type, torch.bfloat16, enabled=training.autocast)


def _bad(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(_is_bad(tensor).any())


def _is_bad(tensor: Tensor) -> Tensor:
    return tensor.isnan() | tensor.isposinf()  # masks are made of -inf
