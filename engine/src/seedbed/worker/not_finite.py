"""Why a loss is not finite: the data, the first forward pass, or what training made of the weights.

A batch is a function of its step, so it is loaded again. Before any update, so are the weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from seedbed.data.positions import positions
from seedbed.data.source import Batch
from seedbed.data.streams import StreamSource
from seedbed.data.tensors import tensors_of
from seedbed.errors import InputError
from seedbed.training.callbacks import Callbacks
from seedbed.training.evaluate import measure
from seedbed.training.shards import Shards
from seedbed.training.step import train_step
from seedbed.worker import assemble
from seedbed.worker.parts import Parts, build_order, build_source, evaluation_batches


class NotFinite(InputError):
    """A loss, or a weight, is not finite; `phase` and `step` tell of which evaluation or step."""

    def __init__(self, message: str, phase: str, step: int) -> None:
        super().__init__(message)
        self.phase, self.step = phase, step


class Cause(InputError):
    """The sample or module from which it comes."""


def explained(error: NotFinite, parts: Parts) -> InputError:
    """Return the error with its cause, if that is found by doing the work once more."""
    try:
        (_take_step if error.phase == "train" else _validate)(parts, error.step)
    except Cause as cause:
        return cause
    except Exception:  # whatever users' code provokes the second time; memory for another model
        pass
    return error


def _take_step(parts: Parts, step: int) -> None:
    """Load the batch of a step of all processes; take the step, if it is the first."""
    settings, shards = parts.settings, Shards(parts.shards.count)
    source = build_source(settings, "train")  # anew: loader workers may share what the other opened
    if step > 1 and isinstance(source, StreamSource):
        return  # it would be read from its beginning
    places = shards.divide(positions(build_order(settings, source), step - 1, step))
    batches = [_finite("data.train", source[place], f"step {step}") for place in places]
    if step == 1:
        training = assemble.build_training_state(settings, parts.training.device, source)
        with _watched(training.model, "the first forward pass, before any update"):
            train_step(replace(training, callbacks=Callbacks()), batches, 1, shards, False, None)


def _validate(parts: Parts, step: int) -> None:
    """Load the validation set, and evaluate it unless training has spoilt the weights."""
    where, shards = f"the validation after step {step}", Shards()
    source = build_source(parts.settings, "validation")
    batches: Iterator[Batch] = (
        _finite("data.validation", batch, where)
        for batch in evaluation_batches(parts.settings, source, shards)
    )
    if all(bool(p.isfinite().all()) for p in parts.training.model.parameters()):
        with _watched(parts.training.model, f"{where}, of finite samples and with finite weights"):
            measure(replace(parts.training, callbacks=Callbacks()), batches, shards)
    for _ in batches:
        pass


def _finite(key: str, batch: Batch, where: str) -> Batch:
    """Return a batch, or raise what names its first number that is not finite."""
    for name, nest in (("inputs", batch.inputs), ("targets", batch.targets)):
        for tensor in tensors_of(nest):
            if bad := _first_bad(tensor):
                value, (sample, *place) = bad
                at = (
                    f" in column {place[0]}" if len(place) == 1 else f" at {place}" if place else ""
                )
                is_sample = tensor.shape[:1] == (len(batch.ids),)
                of = f" of sample {int(batch.ids[sample])}" if is_sample else ""
                raise Cause(
                    f"{key}: expected finite {name}, got {value}{at}{of}, in {where}; correct "
                    "these samples, or leave them out"
                )
    return batch


@contextmanager
def _watched(model: nn.Module, where: str) -> Iterator[None]:
    """Raise what names the first module whose output is not finite."""

    def look(path: str, module: nn.Module, _inputs: Any, output: Any) -> None:
        for tensor in tensors_of(output):
            if bad := _first_bad(tensor):
                is_spoilt = not all(p.isfinite().all() for p in module.parameters())
                advice = "look for divisions, logarithms and roots there"
                raise Cause(
                    f"{f'model.{path}' if path else 'model'}: expected finite outputs of "
                    f"{type(module).__name__}, got {bad[0]} in {where}; "
                    + ("its weights are not finite either" if is_spoilt else advice)
                )

    modules = model.named_modules()
    hooks = [module.register_forward_hook(partial(look, path)) for path, module in modules]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _first_bad(tensor: Tensor) -> tuple[float, list[int]] | None:
    """Return the first number that is NaN or +inf, with its index; masks are made of -inf."""
    if not tensor.is_floating_point():
        return None
    numbers = tensor.detach().reshape(tensor.shape or (1,))
    for index in (numbers.isnan() | numbers.isposinf()).nonzero()[:1].tolist():
        return float(numbers[tuple(index)]), index
    return None
