"""The method of a run, and its optimizers."""

import inspect
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import rng, tasks
from seedbed.config import build
from seedbed.config.settings import SUPERVISED
from seedbed.errors import InputError
from seedbed.methods import Make, Method
from seedbed.training.values import described

Settings = Mapping[str, Any]
_FUNCTIONS = (
    *("configure_optimizers", "updates", "trainable", "training_step", "on_step_end"),
    *("validation_step", "compute", "on_train_end"),
)


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
    for function in _FUNCTIONS:
        require_arguments(method, function)
    task = settings["data"].get("task")
    if task is not None:
        method.task = tasks.make(task)
    return method


def require_arguments(method: Method, function: str) -> None:
    """Raise InputError for a function of a method that cannot be called as it will be."""
    _, *names = inspect.signature(getattr(Method, function)).parameters
    try:
        inspect.signature(getattr(method, function)).bind(*names)
    except TypeError as error:
        raise InputError(
            f"method: expected {type(method).__name__}.{function}({', '.join(names)}), got other "
            f"arguments ({error}); take these"
        ) from None


def require_forward(method: Method, model: nn.Module) -> None:
    """Raise InputError for a model without `forward` whose method does not do without it."""
    for name in ("training_step", "validation_step"):
        is_default = getattr(type(method), name) is getattr(Method, name)
        if is_default and getattr(model.forward, "__func__", None) is nn.Module.forward:
            raise InputError(
                f"method: expected a {name} in {type(method).__name__}, since "
                f"{type(model).__name__} has no forward for the default, got none; write one"
            )


def build_optimizers(
    method: Method, model: nn.Module, settings: Settings
) -> dict[str, torch.optim.Optimizer]:
    """Return the method's optimizers by name; one alone is called `optimizer`.

    Raises:
        InputError: it returns something else, or what could take no step with this model.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("model: expected a model with parameters to train, got none")
    found = method.configure_optimizers(model, maker(settings))
    optimizers = {"optimizer": found} if isinstance(found, torch.optim.Optimizer) else found
    where = f"{type(method).__name__}.configure_optimizers"
    if not isinstance(optimizers, Mapping) or not optimizers:
        raise InputError(
            f"method: expected an optimizer, or several by name, from {where}, got "
            f"{described(found)}; return make(...), or {{'critic': make(...), ...}}"
        )
    for name, optimizer in optimizers.items():
        if not (isinstance(name, str) and name.isidentifier()):
            raise InputError(
                f"method: expected optimizers by names of letters from {where}, got {name!r}; "
                "rename it"
            )
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise InputError(
                f"method: expected an optimizer in {name!r} of {where}, got "
                f"{described(optimizer)}; return make(...)"
            )
        require_usable(optimizer, model, where)
    return dict(optimizers)


def maker(settings: Settings) -> Make:
    """Return what makes the configuration's optimizer for parameters, as methods are given it."""

    def make(parameters: Iterable[Any], **overrides: Any) -> torch.optim.Optimizer:
        groups = [_without_names(each) for each in parameters]
        flat = [each for each in groups if isinstance(each, dict) or each.requires_grad]
        spec = {**settings["optimizer"], **overrides}
        if not flat:
            raise InputError(
                "method: expected parameters to train in configure_optimizers, got none; give "
                "make() some that need gradients"
            )
        return build.build(spec, "optimizer", flat)  # type: ignore[no-any-return]

    return make


def _without_names(entry: Any) -> Any:
    """Return a parameter of (name, parameter), a group with its parameters alike."""
    if isinstance(entry, Mapping):
        inside = entry.get("params", ())
        several = [inside] if isinstance(inside, Tensor) else list(inside)
        parameters = [_without_names(each) for each in several]
        return {**entry, "params": [p for p in parameters if p.requires_grad]}
    found = entry[1] if isinstance(entry, tuple) and len(entry) == 2 else entry
    if not isinstance(found, Tensor):
        raise InputError(
            f"method: expected named parameters, or groups with 'params', for make() in "
            f"configure_optimizers, got {described(entry)}; give it, for instance, "
            "model.named_parameters()"
        )
    return found


def require_usable(optimizer: torch.optim.Optimizer, model: nn.Module, where: str) -> None:
    """Raise InputError for an optimizer that could take no step with this model."""
    name = type(optimizer).__name__
    taken = [p for group in optimizer.param_groups for p in group["params"]]
    known = {id(p) for p in model.parameters()}
    if any(id(p) not in known for p in taken):
        raise InputError(
            f"method: expected parameters of the model in the {name} of {where}, got others, which "
            "no checkpoint holds; make them parameters of the model"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        sparse = {id(m.weight) for m in model.modules() if getattr(m, "sparse", False) is True}
        if any(id(p) not in sparse for p in taken):
            raise InputError(
                f"optimizer: expected one that takes dense gradients, got {name}; try "
                "optimizer=adamw"
            )
