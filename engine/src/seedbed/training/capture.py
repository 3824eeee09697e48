"""The state of a model and an optimizer, captured so that it is restored exactly as it was.

Values, dtypes, memory order and Python types of all that `state_dict` knows, and of all buffers.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from seedbed.errors import InputError

# What PyTorch's optimizers keep for a parameter: of no shape, and of the parameter's.
_SCALARS = ("step", "eta", "mu", "mu_product")
_SHAPED = (
    *("exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "sum"),
    *("square_avg", "grad_avg", "acc_delta", "prev", "step_size", "ax"),
)


Optimizers = Mapping[str, torch.optim.Optimizer]


def capture(model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Return the state of a model and its optimizers; its tensors are the live ones."""
    captured = {name: capture_optimizer(each) for name, each in labelled(optimizers).items()}
    return capture_model(model) | captured


def restore(model: nn.Module, optimizers: Optimizers, state: Mapping[str, Any]) -> None:
    """Bring a model and its optimizers into a state that was captured.

    Raises:
        KeyError, RuntimeError, TypeError, ValueError: it is the state of others.
    """
    restore_model(model, state)
    for name, optimizer in labelled(optimizers).items():
        restore_optimizer(optimizer, state[name])


def labelled(optimizers: Optimizers) -> Optimizers:
    """Return optimizers by what checkpoints and messages call them."""
    if len(optimizers) == 1:
        return {"optimizer": next(iter(optimizers.values()))}
    return {f"optimizer.{name}": optimizer for name, optimizer in optimizers.items()}


def capture_model(model: nn.Module) -> dict[str, Any]:
    """Return a model's `state_dict`, and all its buffers, also those that `state_dict` lacks."""
    buffers = {
        f"{path}.{name}".lstrip("."): buffer
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
    }
    return {"model": model.state_dict(), "buffers": buffers}


@torch.no_grad()
def restore_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Bring a model into a state that was captured.

    A forward pass may have made buffers, or replaced them by others: they need not be there yet.

    Raises:
        KeyError, RuntimeError: it is the state of another model.
    """
    here = {parameter.device.type: parameter.device for parameter in model.parameters()}
    tensors = [value for value in state["model"].values() if isinstance(value, Tensor)]
    moved = here.keys().isdisjoint(tensor.device.type for tensor in tensors)
    modules = dict(model.named_modules())
    for key, value in state["buffers"].items():
        path, _, name = key.rpartition(".")
        if moved and value is not None:
            value = value.to(next(iter(here.values())))
        _restore_buffer(modules[path], name, value, key in state["model"], moved)
    model.load_state_dict(state["model"])


def _restore_buffer(
    module: nn.Module, name: str, value: Tensor | None, persistent: bool, moved: bool
) -> None:
    there = module._buffers.get(name)
    if value is None and name in module._buffers:
        setattr(module, name, None)
    elif value is not None and _fits(there, value, moved):
        there.copy_(value)  # type: ignore[union-attr]  # in place: others may refer to it
    else:
        module.register_buffer(name, value, persistent=persistent)


def _fits(there: Tensor | None, value: Tensor, moved: bool) -> bool:
    """Return whether a buffer can take a value as it is; each device has a memory order."""
    if type(there) is not type(value) or there.layout != torch.strided:
        return False
    alike = (there.shape, there.dtype, there.device) == (value.shape, value.dtype, value.device)
    if value.layout != torch.strided or not alike or 0 in there.stride():
        return False
    return moved or there.stride() == value.stride()


def capture_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's `state_dict`, and where and in which order its parameters lie.

    Raises:
        InputError: `state_dict` would confuse entries of its state.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    known = {id(parameter) for parameter in parameters}
    for key in optimizer.state:
        if isinstance(key, int) or (isinstance(key, Tensor) and id(key) not in known):
            what = "a tensor that is no parameter" if isinstance(key, Tensor) else repr(key)
            raise InputError(
                "optimizer.state: expected keys that are parameters of its groups, or texts, got "
                f"{what}; use a text"
            )
    state = optimizer.state_dict()
    return {**state, "parameters": [(p.device.type, p.stride()) for p in parameters]}


@torch.no_grad()
def restore_optimizer(optimizer: torch.optim.Optimizer, captured: Mapping[str, Any]) -> None:
    """Bring an optimizer into a state that was captured.

    `load_state_dict` is the optimizer's own; only what PyTorch's changes in passing is held back:
    it casts tensors to their parameter's dtype, moves them, and takes texts apart.

    Raises:
        KeyError, RuntimeError, TypeError, ValueError: it is the state of another one.
    """
    saved = {key: value for key, value in captured.items() if key != "parameters"}
    places = captured["parameters"]
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    moved = {device for device, _ in places}.isdisjoint(p.device.type for p in parameters)
    with _AsSaved(saved, moved):
        optimizer.load_state_dict(saved)
    for number, parameter in zip(_numbers(saved), parameters, strict=False):
        if parameter in optimizer.state and number in saved["state"]:
            state = _rebuilt(optimizer.state[parameter], saved["state"][number])
            optimizer.state[parameter] = state
    for (_, stride), parameter in zip(places, parameters, strict=True):
        if parameter in optimizer.state and stride != parameter.stride():
            state = optimizer.state[parameter]
            optimizer.state[parameter] = _map_tensors(_laid_like(parameter, stride), state)
    _require_fitting(optimizer)


def _require_fitting(optimizer: torch.optim.Optimizer) -> None:
    """Raise ValueError for state of another shape or type than one of PyTorch's optimizers makes.

    Fused kernels do not look, and would write elsewhere. Others than PyTorch's may keep anything.
    """
    is_torchs = type(optimizer).__module__.startswith("torch.optim")
    for group in optimizer.param_groups:
        if not (is_torchs or group.get("fused")):
            continue
        for parameter in group["params"]:
            for name, value in optimizer.state.get(parameter, {}).items():
                if not _is_made_for(parameter, name, value):
                    shape = getattr(value, "shape", type(value).__name__)
                    raise ValueError(
                        f"{name} of {shape} for a parameter of {parameter.shape}, {parameter.dtype}"
                    )


def _is_made_for(parameter: Tensor, name: str, value: Any) -> bool:
    if name in _SCALARS:
        return value.dim() == 0 if isinstance(value, Tensor) else isinstance(value, int | float)
    if name not in _SHAPED or value is None:  # momentum that is not used is None
        return True
    if not isinstance(value, Tensor):
        return False
    return (value.shape, value.dtype) == (parameter.shape, parameter.dtype)


class _AsSaved(TorchFunctionMode):
    """Lets the tensors of a state keep their dtype, and their device unless the run has moved."""

    def __init__(self, saved: object, moved: bool) -> None:
        super().__init__()
        self._saved = {id(tensor) for tensor in _tensors(saved)}
        self._moved = moved

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        # What PyTorch's policy for state asks for; conversions of an optimizer's own are let be.
        asked = func is Tensor.to and kwargs.keys() == {"dtype", "device"}
        if asked and id(args[0]) in self._saved:
            stays = args[0].device.type == "cpu" and not self._moved
            return args[0] if stays else args[0].to(device=kwargs["device"])
        return func(*args, **kwargs)


def _numbers(saved: Mapping[str, Any]) -> list[int]:
    """Return the numbers that a `state_dict` has for parameters; [] for one of another kind."""
    return [number for group in saved.get("param_groups", []) for number in group["params"]]


def _rebuilt(loaded: Any, saved: Any) -> Any:
    """Return what was loaded, with the texts, sets and kinds of dictionaries that were saved."""
    if type(saved) in (str, set) and type(loaded) is type(saved):
        return saved
    if isinstance(saved, dict) and isinstance(loaded, dict):
        pairs = {k: _rebuilt(v, saved[k]) if k in saved else v for k, v in loaded.items()}
        return type(saved)(pairs)
    if type(saved) in (list, tuple) and type(loaded) is type(saved) and len(loaded) == len(saved):
        return type(saved)(map(_rebuilt, loaded, saved))
    return loaded


def _laid_like(parameter: Tensor, stride: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """Return a function that lays tensors as a parameter that has another memory order here.

    That differs from device to device, and fused kernels go through memory as it lies.
    """

    def lay(tensor: Tensor) -> Tensor:
        if tensor.shape != parameter.shape or tensor.stride() != stride:
            return tensor
        empty = torch.empty_like(parameter, dtype=tensor.dtype, device=tensor.device)
        return empty.copy_(tensor)

    return lay


def _map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (dict, OrderedDict, Counter):
        return type(value)({key: _map_tensors(function, item) for key, item in value.items()})
    if type(value) in (list, tuple):
        return type(value)(_map_tensors(function, item) for item in value)
    return value


def _tensors(value: Any) -> Iterator[Tensor]:
    found: list[Tensor] = []
    _map_tensors(lambda tensor: found.append(tensor) or tensor, value)  # type: ignore[func-returns-value]
    return iter(found)
