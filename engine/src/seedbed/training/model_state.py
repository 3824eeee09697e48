"""The state of a model, captured and restored bit for bit: weights, buffers, memory
order."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from seedbed import dtensors
from seedbed.words import as_words


def capture_model(model: nn.Module) -> dict[str, Any]:
    buffers = {
        f"{path}.{name}".lstrip("."): buffer
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
    }
    return {"model": model.state_dict(), "buffers": buffers}


@torch.no_grad()
def restore_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Restore the captured state of a model, possibly from another kind of device.

    A buffer is written in place if possible, since user code may refer to the tensor;
    otherwise it is replaced or registered, since a forward pass may have created or
    replaced it.
    """
    written = set[int]()
    for key, value in state["buffers"].items():
        path, _, name = key.rpartition(".")
        module = model.get_submodule(path)
        # TorchScript's mapping has no `get`
        there = dict(module._buffers.items()).get(name)
        if there is not None and value is not None:
            value = _expanded_as(there, value.to(there.device))
            # but buffers of one memory may differ by now
            can_copy = _can_copy(value, there)
            if can_copy and (
                there.data_ptr() not in written or torch.equal(value, there)
            ):
                written.add(there.data_ptr())
                there.copy_(value)
                continue
        if name in module._buffers:
            setattr(module, name, value)
        else:
            module.register_buffer(name, value, persistent=key in state["model"])
    weights: Any = OrderedDict(state["model"])
    # versions of modules
    weights._metadata = getattr(state["model"], "_metadata", None)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name in weights:
            weights[name] = dtensors.like(weights[name], parameter)
        # Kernels may sum in another order if a weight has another memory order.
        saved = weights.get(name)
        is_dense = isinstance(saved, Tensor) and saved.layout is torch.strided
        if (
            is_dense
            and saved.shape == parameter.shape
            and saved.stride() != parameter.stride()
        ):
            parameter.data = torch.empty_like(
                saved, dtype=parameter.dtype, device=parameter.device
            )
    model.load_state_dict(weights)


def _expanded_as(there: Tensor, value: Tensor) -> Tensor:
    """Return a value of a file, where expanded tensors are whole, expanded as the
    buffer there."""
    if (
        there.layout is not torch.strided
        or 0 not in there.stride()
        or there.shape != value.shape
    ):
        return value
    first = value
    for dimension, stride in enumerate(there.stride()):
        first = (
            first
            if stride
            else first.narrow(dimension, 0, min(1, first.shape[dimension]))
        )
    expanded = first.clone().expand(there.shape)
    return expanded if torch.equal(as_words(expanded), as_words(value)) else value


def _can_copy(value: Tensor, there: Tensor) -> bool:
    """Return whether a copy in place makes the second tensor the same, memory order
    included."""
    if there.is_inference() or not value.layout is there.layout is torch.strided:
        return False
    layouts = [
        (tensor.dtype, tensor.shape, tensor.stride()) for tensor in (value, there)
    ]
    is_expanded = 0 in there.stride()
    return layouts[0] == layouts[1] and not is_expanded
