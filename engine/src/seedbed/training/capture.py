"""The state of a model and its optimizers, captured so that it is restored exactly as it was.

Values, dtypes and memory order of all that `state_dict` knows and of all buffers; modes, and which
weights need gradients. Optimizers' state is assigned as it was saved: PyTorch's `load_state_dict`
would cast it to the dtype of its parameter.
"""

from collections.abc import Mapping
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
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers.values():
        if any(id(p) not in own for group in optimizer.param_groups for p in group["params"]):
            raise InputError(
                "model: expected the parameters that its optimizers were given, got others, made "
                "in a later step; make modules and parameters in __init__, and change their values "
                "in place"
            )
    return {
        **capture_model(model),
        "modes": {path: module.training for path, module in model.named_modules()},
        "requires_grad": {name: p.requires_grad for name, p in model.named_parameters()},
        **{name: capture_optimizer(each) for name, each in labelled(optimizers).items()},
    }


def restore(model: nn.Module, optimizers: Optimizers, state: Mapping[str, Any]) -> None:
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
    """
    here = {parameter.device.type: parameter.device for parameter in model.parameters()}
    tensors = [value for value in state["model"].values() if isinstance(value, Tensor)]
    moved = here.keys().isdisjoint(tensor.device.type for tensor in tensors)
    modules = dict(model.named_modules())
    for key, value in state["buffers"].items():
        path, _, name = key.rpartition(".")
        module, there = modules[path], modules[path]._buffers.get(name)
        if moved and value is not None:
            value = value.to(next(iter(here.values())))
        if value is None and name in module._buffers:
            setattr(module, name, None)
        elif value is not None and _fits(there, value, moved):
            there.copy_(value)  # in place: others may refer to it
        else:
            module.register_buffer(name, value, persistent=key in state["model"])
    for name, parameter in model.named_parameters(remove_duplicate=False):
        # Kernels may sum in another order where a weight has another memory order.
        saved = state["model"].get(name)
        is_plain = isinstance(saved, Tensor) and saved.layout is torch.strided
        fits = is_plain and not saved.is_nested and saved.shape == parameter.shape
        if fits and saved.stride() != parameter.stride():
            laid = torch.empty_like(saved, dtype=parameter.dtype, device=parameter.device)
            parameter.data = laid
    model.load_state_dict(state["model"])


def _fits(there: Tensor | None, value: Tensor, moved: bool) -> bool:
    """Return whether a buffer can take a value as it is; each device has a memory order."""
    if type(there) is not type(value) or there.layout != torch.strided:
        return False
    alike = (there.shape, there.dtype, there.device) == (value.shape, value.dtype, value.device)
    if value.layout != torch.strided or not alike or 0 in there.stride():
        return False
    return moved or there.stride() == value.stride()


def capture_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's `state_dict`, and on which kind of device its parameters are."""
    require_fused_state_fits(optimizer)
    devices = [p.device.type for group in optimizer.param_groups for p in group["params"]]
    return {**optimizer.state_dict(), "devices": devices}


def require_fused_state_fits(optimizer: torch.optim.Optimizer) -> None:
    """Refuse moments of another shape, dtype or memory order than the weights of fused kernels.

    These do not look: they pair weights and moments as they lie, and would write elsewhere.
    """

    def kind(value: Tensor) -> tuple[Any, ...]:
        strides = zip(value.shape, value.stride(), strict=True)  # of size 1, they say nothing
        return tuple(value.shape), value.dtype, tuple(step for size, step in strides if size > 1)

    for group in optimizer.param_groups:
        for parameter in group["params"] if group.get("fused") else ():
            for name, moment in optimizer.state.get(parameter, {}).items():
                if name in _MOMENTS and moment is not None and kind(moment) != kind(parameter):
                    raise InputError(
                        f"optimizer: expected {name} of shape, dtype and strides of its weight, "
                        f"{kind(parameter)}, for a fused kernel, got {kind(moment)}; change "
                        "weights in place (weight.copy_(...)), or say optimizer.fused=false"
                    )


@torch.no_grad()
def restore_optimizer(optimizer: torch.optim.Optimizer, captured: Mapping[str, Any]) -> None:
    """Bring an optimizer into a state that was captured; one with a `load_state_dict` knows how."""
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
        if known and parameter.device.type not in known:  # the run has moved to another device
            # Counts of steps stay on the CPU, where PyTorch has them unless kernels read them.
            moves_counts = group.get("fused") or group.get("capturable")

            def move(
                tensor: Tensor, to: Any = parameter.device, counts: Any = moves_counts
            ) -> Tensor:
                return tensor.to(to) if tensor.dim() or counts else tensor

            value = tree_map_only(Tensor, move, value)
        optimizer.state[parameter] = value
    require_fused_state_fits(optimizer)
