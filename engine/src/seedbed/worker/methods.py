"""The method of a run, and its optimizers."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import rng, tasks
from seedbed.config import build
from seedbed.config.settings import SUPERVISED
from seedbed.errors import InputError
from seedbed.methods import Make, Method, require_hooks

Settings = Mapping[str, Any]


def build_method(settings: Settings) -> Method:
    """Build the method that `method` describes, which knows the task of the data."""
    if settings["determinism"]["seeding"]:  # it may draw when it is built
        rng.seed_globals(rng.key(settings["seeds"]["init"], "init", 2))
    spec = settings.get("method") or {"_target_": SUPERVISED}  # records from before have none
    method = build.build(spec, "method")
    if not isinstance(method, Method):
        raise InputError(
            f"method: expected a class that extends seedbed.methods.Method, got "
            f"{type(method).__name__}; see docs/methods.md"
        )
    require_hooks("method", method, Method)
    task = settings["data"].get("task")
    if task is not None:
        method.task = tasks.make(task)
    return method


def build_optimizers(
    method: Method, model: nn.Module, settings: Settings
) -> dict[str, torch.optim.Optimizer]:
    """Return the method's optimizers by name; one alone is called `optimizer`.

    Raises:
        InputError: a name cannot be a column's, or a parameter is none of the model's.
    """
    made = method.configure_optimizers(model, maker(settings))
    optimizers = {"optimizer": made} if isinstance(made, torch.optim.Optimizer) else dict(made)
    where = f"{type(method).__name__}.configure_optimizers"
    in_model = {id(p) for p in model.parameters()}
    for name, optimizer in optimizers.items():
        if not name.isidentifier():  # metrics.csv has a column of each
            raise InputError(
                f"method: expected optimizers by names of letters from {where}, got {name!r}"
            )
        if any(id(p) not in in_model for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                f"method: expected parameters of the model in the {type(optimizer).__name__} of "
                f"{where}, got others, which no checkpoint holds; make them parameters of the model"
            )
    return optimizers


def maker(settings: Settings) -> Make:
    """Return what makes the configuration's optimizer for parameters, as methods are given it."""

    def make(parameters: Iterable[Any], **overrides: Any) -> torch.optim.Optimizer:
        entries = [_without_names(each) for each in parameters]
        trained = [each for each in entries if isinstance(each, dict) or each.requires_grad]
        spec = {**settings["optimizer"], **overrides}
        return build.build(spec, "optimizer", trained)  # type: ignore[no-any-return]

    return make


def _without_names(entry: Any) -> Any:
    """Return a parameter of (name, parameter), a group with its parameters alike."""
    if isinstance(entry, Mapping):
        inside = entry["params"]
        several = [inside] if isinstance(inside, Tensor) else list(inside)
        parameters = [_without_names(each) for each in several]
        return {**entry, "params": [p for p in parameters if p.requires_grad]}
    return entry[1] if isinstance(entry, tuple) else entry
