"""The state of a model and its optimizers, captured so that it is restored exactly as it was.

Values, dtypes and memory order of all that `state_dict` knows and of all buffers; modes, and which
weights need gradients. Optimizers' state is assigned as it was saved: PyTorch's `load_state_dict`
would cast it to the dtype of its parameter.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from seedbed.errors import InputError

Optimizers = Mapping[str, torch.optim.Optimizer]
# What PyTorch's fused optimizers keep of a weight.
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")


def capture(model: nn.Module, optimizers: Optimizers) -> dict[str, Any]:
    """Return the state of a model and its optimizers; its tensors are the live ones.

    Raises:
        InputError: it is one that no resumed run can have.
    """
    _require_trained(model, optimizers)
    captured = {name: capture_optimizer(each) for name, each in labelled(optimizers).items()}
    return {
        **capture_model(model),
        "modes": {path: module.training for path, module in model.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        **captured,
    }


def _require_trained(model: nn.Module, optimizers: Optimizers) -> None:
    """Refuse optimizers of other parameters than the model's: in a resumed run they are these."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers.values():
        if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                "model: expected the parameters that its optimizers were given, got others, made "
                "in a later step; make modules and parameters in __init__, and change their values "
                "in place"
            )


def restore(model: nn.Module, optimizers: Optimizers, state: Mapping[str, Any]) -> None:
    """Bring a model and its optimizers into a state that was captured.

    Raises:
        KeyError, RuntimeError, TypeError, ValueError: it is the state of others.
    """
    restore_model(model, state)
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters())
    for path, mode in state.get("modes", {}).items():
        modules[path].training = mode
    for name, needed in state.get("requires_grad", {}).items():
        parameters[name].requires_grad_(needed)
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
    for name, parameter in model.named_parameters(remove_duplicate=False):
        _lay(parameter, state["model"].get(name))
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


def _lay(parameter: nn.Parameter, saved: Any) -> None:
    """Give a weight the memory order of the saved one: kernels may sum in another order by it."""
    if not isinstance(saved, Tensor) or saved.layout is not torch.strided or saved.is_nested:
        return
    if saved.shape == parameter.shape and saved.stride() != parameter.stride():
        laid = torch.empty_like(saved, dtype=parameter.dtype, device=parameter.device)
        parameter.data = laid


def capture_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's `state_dict`, and on which kind of device its parameters are.

    Raises:
        InputError: a fused kernel would take moments for those of other weights.
    """
    require_fused_state_fits(optimizer)
    devices = [p.device.type for group in optimizer.param_groups for p in group["params"]]
    return {**optimizer.state_dict(), "devices": devices}


def require_fused_state_fits(optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments of another shape, dtype or memory order than the weights of fused kernels.

    These do not look: they pair weights and moments as they lie, and would write elsewhere.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            kept = optimizer.state.get(parameter, {})
            for name in (each for each in _MOMENTS if kept.get(each) is not None):
                if _kind(kept[name]) != _kind(parameter):
                    raise InputError(
                        f"optimizer: expected {name} of shape, dtype and strides of its weight, "
                        f"{_kind(parameter)}, for a fused kernel, got {_kind(kept[name])}; change "
                        "weights in place (weight.copy_(...)), or say optimizer.fused=false"
                    )


def _kind(value: Any) -> tuple[Any, ...]:
    """Return shape, dtype and strides; those of a dimension of size 1 say nothing."""
    if not isinstance(value, Tensor):
        return (type(value).__name__,)
    strides = zip(value.shape, value.stride(), strict=True)
    return tuple(value.shape), value.dtype, tuple(step for size, step in strides if size > 1)


@torch.no_grad()
def restore_optimizer(optimizer: torch.optim.Optimizer, captured: Mapping[str, Any]) -> None:
    """Bring an optimizer into a state that was captured; one with a `load_state_dict` knows how.

    Raises:
        KeyError, TypeError, ValueError: it is the state of another one.
    """
    saved = {key: value for key, value in captured.items() if key != "devices"}
    if type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict:
        optimizer.load_state_dict(saved)
        return
    owners: dict[Any, tuple[Tensor, dict[str, Any]]] = {}
    for group, kept in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        pairs = zip(group["params"], kept["params"], strict=True)
        owners |= {number: (parameter, group) for parameter, number in pairs}
        group.update({name: value for name, value in kept.items() if name != "params"})
    known = set(captured.get("devices", ()))
    optimizer.state.clear()  # in place: others may share it
    for key, value in saved["state"].items():
        if key not in owners:  # a name
            optimizer.state[key] = value
            continue
        parameter, group = owners[key]
        if known and parameter.device.type not in known:
            value = tree_map_only(Tensor, _to_device_of(parameter, group), value)
        optimizer.state[parameter] = value
    require_fused_state_fits(optimizer)


def _to_device_of(parameter: Tensor, group: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """Return a function that moves state to a parameter's device, for a run that has moved.

    Counts of steps stay on the CPU, where PyTorch has them unless kernels read them.
    """
    reads_counts = group.get("fused") or group.get("capturable")

    def move(tensor: Tensor) -> Tensor:
        return tensor.to(parameter.device) if tensor.dim() or reads_counts else tensor

    return move
