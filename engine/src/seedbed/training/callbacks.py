"""Callbacks, which may read a run but not change its model, and the scalars that steps
log."""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import rng
from seedbed.config import build
from seedbed.errors import InputError
from seedbed.methods import Callback, Run, Value, require_hooks
from seedbed.names import CALLBACK
from seedbed.training.unchanged import Watched, unchanged

# reserved columns of metrics.csv
_COLUMNS = ("step", "epoch", "phase", "learning_rate")


class Callbacks:
    """The callbacks of a run, by name; `call` does nothing before `open`."""

    def __init__(self, callbacks: Mapping[str, Callback] | None = None) -> None:
        self._callbacks = dict(callbacks or {})
        self._called: set[str] = set()
        self.run: Run | None = None

    def __len__(self) -> int:
        return len(self._callbacks)

    def open(self, run: Run) -> None:
        self.run = run if self._callbacks else None

    @property
    def takes_evaluations(self) -> bool:
        functions = (
            type(callback).on_evaluation_end for callback in self._callbacks.values()
        )
        return any(function is not Callback.on_evaluation_end for function in functions)

    def call(
        self, hook: str, seed: int | None, step: int, *arguments: Any, **run_fields: Any
    ) -> dict[str, Tensor]:
        """Call a hook of all callbacks; return the scalars that they logged, by name.

        Raise InputError if one changes the model or gradients. `run_fields` are
        fields of `run` to update.
        """
        run = self.run
        if run is None:
            return {}
        vars(run).update(run_fields, step=step)
        gradients = [
            t for each in arguments if isinstance(each, dict) for t in each.values()
        ]

        def watched(by_bits: bool) -> Watched:
            tensors = [*run.model.parameters(), *run.model.buffers(), *gradients]
            trained = [parameter.requires_grad for parameter in run.model.parameters()]
            if by_bits:
                return Watched(tensors, options=trained)
            return Watched(by_version=tensors, options=trained)

        for number, (name, callback) in enumerate(self._callbacks.items()):
            if getattr(type(callback), hook) is getattr(Callback, hook):
                continue
            if seed is not None:
                rng.seed_globals(rng.key(seed, "dropout", step, CALLBACK, number))
            where = f"{type(callback).__name__}.{hook}"
            # in steps: the first time
            by_bits = run.phase != "train" or where not in self._called
            self._called.add(where)
            refusal = (
                f"callbacks.{name}: {where} changed weights, buffers or gradients,"
                " which callbacks may only read; change them in a method's on_step_end"
            )
            with (
                unchanged(run.model, partial(watched, by_bits), refusal),
                torch.no_grad(),
            ):
                getattr(callback, hook)(run, step, *arguments)
        logged = run.logged
        run.logged = {}
        return {name: scalar(name, value) for name, value in logged.items()}

    def state(self) -> dict[str, Any]:
        return {
            f"callback.{name}": callback.state_dict()
            for name, callback in self._callbacks.items()
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, callback in self._callbacks.items():
            if f"callback.{name}" in state:
                callback.load_state_dict(state[f"callback.{name}"])


def of_settings(specs: Mapping[str, Any]) -> Callbacks:
    callbacks = {}
    for name, spec in specs.items():
        callbacks[name] = build.build(spec, f"callbacks.{name}")
        rng.warn_if_reseeded(f"callbacks.{name}: {spec['_target_']}", "init")
        require_hooks(f"callbacks.{name}", callbacks[name], Callback)
    return Callbacks(callbacks)


def scalars_of(
    model: nn.Module,
    values: Mapping[str, Value],
    gradients: Sequence[Tensor],
    device: torch.device,
) -> dict[str, Tensor]:
    """Return the scalars to log, and pairs (sum, count) as tensors (2,).

    Raises InputError if a function that makes one changes a thing.
    """
    scalars = {}

    def watched() -> Watched:  # kernels write statistics without a new version
        return Watched(model.buffers(), (*model.parameters(), *gradients))

    for name, value in values.items():
        if callable(value) and not isinstance(value, Tensor):
            refusal = (
                "method: expected functions of logged values that change nothing, got"
                f" {name} of training_step, which changes weights, buffers or"
                " gradients; use outputs of the training pass, or model.eval() in that"
                " function"
            )
            with unchanged(model, watched, refusal):
                value = value()
        if isinstance(value, tuple) and len(value) == 2:  # (sum, count)
            scalars[name] = torch.stack([scalar(name, part, device) for part in value])
        else:
            scalars[name] = scalar(name, value, device)
    return scalars


def scalar(
    name: str, value: Tensor | float, device: torch.device | None = None
) -> Tensor:
    """Return a floating-point copy of a logged value; to be called without gradients.

    A method may return a parameter or a buffer, shards are summed in place, and values
    are read several steps later.
    """
    require_free([name])
    tensor = torch.as_tensor(value, device=device).detach().reshape(())
    return tensor.clone() if tensor.is_floating_point() else tensor.float()


def require_free(names: Iterable[str]) -> None:
    """Raise InputError for a name that is reserved or cannot be a single column of
    metrics.csv."""
    if bad := [
        n for n in names if n in ("", *_COLUMNS) or "," in n or not n.isprintable()
    ]:
        known = ", ".join(_COLUMNS)
        raise InputError(
            f"method: expected names other than {known}, without commas, got {bad[0]}"
        )


def is_by_sample(pair: Sequence[Any]) -> bool:
    """Return whether a pair (sum, count) of `Method.validation_step` has numbers of
    each sample."""
    return all(isinstance(part, Tensor) and part.dim() == 1 for part in pair)


def require_shapes(values: Mapping[str, Any], samples: int, any_number: bool) -> None:
    """Raise InputError for values that no mean, or (of `any_number`) no own `compute`,
    can take."""
    wanted = "a tensor with a first dimension or a pair (sum, count)"
    advice = ""
    if not any_number:
        wanted = (
            f"a number for each of {samples} samples, as a tensor, or a pair (sum,"
            " count)"
        )
        advice = "; tensors of other shapes need a compute of your own"
    for name, value in values.items():
        shape = tuple(value.shape) if isinstance(value, Tensor) else None
        if _fits(name, value, shape, samples, any_number):
            continue
        if name == "predictions":
            wanted = f"a tensor with a row for each of {samples} samples"
            advice = ""
        got = type(value).__name__ if shape is None else f"a tensor of shape {shape}"
        if shape == () and name != "predictions":
            advice = f"; return {name} of each sample, not their mean{advice}"
        raise InputError(
            f"method: expected {wanted} for {name} in validation_step, got"
            f" {got}{advice}"
        )


def _fits(
    name: str,
    value: Any,
    shape: tuple[int, ...] | None,  # None: not a tensor
    samples: int,
    any_number: bool,
) -> bool:
    if name == "predictions":
        return shape is not None and shape[:1] == (samples,)
    if isinstance(value, tuple) and len(value) == 2:  # (sum, count)
        shapes = [getattr(part, "shape", ()) for part in value]
        return all(part == (samples,) for part in shapes) or all(
            math.prod(part) == 1 for part in shapes
        )
    return bool(shape) if any_number else shape == (samples,)
