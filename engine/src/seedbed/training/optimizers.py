"""The state of optimizers: tensors for fingerprints, capture, and bit-for-bit
restore."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import optimizer as of_torch
from torch.utils._pytree import tree_leaves

from seedbed import dtensors, fingerprint
from seedbed.errors import InputError

Optimizers = Mapping[str, torch.optim.Optimizer]
# The elementwise state of PyTorch's fused optimizers.
_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "sum")


def labelled(optimizers: Optimizers) -> Optimizers:
    """Return optimizers by their names in checkpoints and messages."""
    if len(optimizers) == 1:
        return {"optimizer": next(iter(optimizers.values()))}
    return {f"optimizer.{name}": optimizer for name, optimizer in optimizers.items()}


def optimizer_tensors(*optimizers: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors in optimizers' states for fingerprints, in the order of
    parameters.

    For each optimizer, tensors under keys that are not parameters follow, then one on
    the CPU that hashes its numbers and strings, if any.
    """
    tensors: list[Tensor] = []
    for optimizer in optimizers:
        state = optimizer.state
        parameters = [
            p for group in optimizer.param_groups for p in group["params"] if p in state
        ]
        entries = [state[parameter] for parameter in parameters]
        if len(state) > len(entries):
            ids_of_parameters = {id(parameter) for parameter in parameters}
            entries += [
                value
                for key, value in state.items()
                if id(key) not in ids_of_parameters
            ]
        others: list[object] = []
        for entry in entries:
            for value in entry.values() if type(entry) is dict else [entry]:
                if isinstance(value, Tensor):  # the usual case, in every step
                    tensors.append(value)
                    continue
                for leaf in tree_leaves(value):
                    if isinstance(leaf, Tensor):
                        tensors.append(leaf)
                    elif isinstance(leaf, int | float | complex | str | bytes):
                        others.append(leaf)
        if others:
            tensors.append(fingerprint.of_objects(others))
    return tensors


def capture_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    _require_fused_state_fits(optimizer)
    devices = [
        p.device.type for group in optimizer.param_groups for p in group["params"]
    ]
    return {**optimizer.state_dict(), "devices": devices}


def _require_fused_state_fits(optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError unless moments are laid out as their weights, as fused kernels
    assume."""

    def kind(value: Tensor) -> tuple[Any, ...]:
        strides = zip(value.shape, value.stride(), strict=True)  # irrelevant for size 1
        return (
            tuple(value.shape),
            value.dtype,
            tuple(step for size, step in strides if size > 1),
        )

    fused = [group["params"] for group in optimizer.param_groups if group.get("fused")]
    for parameter in (parameter for parameters in fused for parameter in parameters):
        for name, moment in optimizer.state.get(parameter, {}).items():
            if (
                name in _MOMENTS
                and moment is not None
                and kind(moment) != kind(parameter)
            ):
                raise InputError(
                    f"optimizer: expected {name} of shape, dtype and strides of its"
                    f" weight, {kind(parameter)}, for a fused kernel, got"
                    f" {kind(moment)}; change weights in place (weight.copy_(...)), or"
                    " set optimizer.fused=false"
                )


@torch.no_grad()
def restore_optimizer(
    optimizer: torch.optim.Optimizer, captured: Mapping[str, Any]
) -> None:
    """Restore the captured state of an optimizer bit for bit.

    PyTorch's `load_state_dict` would cast it to the dtype of its parameter. It is only
    called if the run has moved to another kind of device, since it knows which tensors
    to move, or if the optimizer's class overrides it.
    """
    saved = {key: value for key, value in captured.items() if key != "devices"}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    is_sharded = dtensors.first_of(parameters) is not None
    if is_sharded:
        saved["state"] = _rows_here(saved["state"], parameters)
    devices = [
        p.device.type for group in optimizer.param_groups for p in group["params"]
    ]
    is_own = (
        type(optimizer).load_state_dict is not torch.optim.Optimizer.load_state_dict
    )
    is_own = is_own or (is_sharded and devices[0] != "cpu")  # it was read to the CPU
    if is_own or devices != captured.get("devices", devices):
        optimizer.load_state_dict(saved)
        return
    owners: dict[Any, Tensor] = {}
    for group, kept in zip(optimizer.param_groups, saved["param_groups"], strict=True):
        owners |= zip(kept["params"], group["params"], strict=True)
        group.update({name: value for name, value in kept.items() if name != "params"})
    optimizer.state.clear()  # in place: other objects may share it
    optimizer.state.update(
        {owners.get(key, key): each for key, each in saved["state"].items()}
    )
    _require_fused_state_fits(optimizer)


def _rows_here(
    state: Mapping[Any, Any], parameters: Sequence[Tensor]
) -> dict[Any, Any]:
    """Return the state of parameters by their numbers, sharded as they are."""
    rows = dict(state)
    for number, parameter in enumerate(parameters):
        for name, value in state.get(number, {}).items():
            rows[number] = {**rows[number], name: dtensors.like(value, parameter)}
    return rows


def may_draw(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step may run code that is not PyTorch's, which may draw; the
    optimizers of PyTorch do not."""
    for code in (type(optimizer), type(optimizer).step, optimizer.step):
        if not str(getattr(code, "__module__", "")).startswith("torch.optim."):
            return True
    return any(
        (
            optimizer._optimizer_step_pre_hooks,
            optimizer._optimizer_step_post_hooks,
            of_torch._global_optimizer_pre_hooks,
            of_torch._global_optimizer_post_hooks,
        )
    )
