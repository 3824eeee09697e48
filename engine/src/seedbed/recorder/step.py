"""The tensors of a step in a loop of one's own, whatever its parts are made of."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seedbed.data.tensors import tensors_of
from seedbed.errors import InputError
from seedbed.training.optimizer_tensors import optimizer_tensors

Optimizer = torch.optim.Optimizer


def contents(value: Any) -> list[Tensor]:
    """Return the tensors of a batch, in order.

    Arrays count as tensors; numbers, texts and arrays that are no tensors are one more, on the CPU.
    """
    tensors: list[Tensor] = []
    others: list[object] = []

    def visit(value: Any) -> None:
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, list | tuple) and not hasattr(value, "to"):
            for each in value:
                visit(each)
        elif isinstance(value, np.ndarray | np.generic):
            array = np.array(value, order="C")  # its memory is torch's to read, whatever it was
            try:
                tensors.append(torch.from_numpy(array))
            except (TypeError, ValueError):  # torch has no such numbers, or these are none
                items = array.tolist() if array.dtype == object else array.tobytes()
                others.append((array.dtype.str, array.shape, items))
        elif isinstance(value, bool | int | float | complex | str | bytes | range):
            others.append(value)
        elif value is not None:
            tensors.extend(tensors_of(value))

    visit(value)
    if others:
        digest = hashlib.sha256(repr(others).encode(errors="backslashreplace")).digest()
        tensors.append(torch.tensor(int.from_bytes(digest[:8], "little", signed=True)))
    return tensors


def sample_ids(ids: Any) -> list[Tensor]:
    """Return the ids of samples as tensors: int64 (B,) of numbers, a digest of anything else."""
    if isinstance(ids, range | list | tuple) and all(type(each) is int for each in ids):
        ids = np.array(ids, dtype=np.int64 if max(map(abs, ids), default=0) < 1 << 63 else object)
    return contents(ids)


def scalars(argument: str, given: Any, name: str) -> dict[str, Tensor]:
    """Return numbers by name, as copies without dimensions.

    Args:
        argument: what they are, for messages.
        given: one, a list or a mapping of such, or None.
        name: of a single one.

    Raises:
        InputError: one is no number.
    """
    if isinstance(given, list | tuple):
        given = dict(enumerate(given))
    found = {}
    for key, value in (given if isinstance(given, Mapping) else {name: given}).items():
        is_tensor = isinstance(value, Tensor)
        if value is None and not isinstance(given, Mapping):
            continue
        if not (value.numel() == 1 if is_tensor else isinstance(value, int | float | np.number)):
            shape = tuple(value.shape) if is_tensor else type(value).__name__
            raise InputError(f"{argument}: expected a scalar, got {shape} for {key}; give its mean")
        copy = value.detach().clone() if is_tensor else torch.tensor(value, dtype=torch.float64)
        found[str(key)] = copy.reshape(())
    return found


def with_loss(losses: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return losses with one called `loss`: without, it is their sum."""
    if not losses or "loss" in losses:
        return losses
    first, *more = losses.values()
    return {**losses, "loss": sum((each.to(first.device) for each in more), start=first)}


def several(value: Any, kind: type[Any]) -> list[Any]:
    """Return one, or those in a list or a mapping; what is no such object fails when it is used."""
    if isinstance(value, Mapping) and not isinstance(value, kind):
        value = list(value.values())
    is_many = isinstance(value, list | tuple) and not isinstance(value, kind)
    return [each for each in (value if is_many else [value]) if each is not None]


def device(networks: Iterable[nn.Module]) -> torch.device:
    """Return where the first weight lies."""
    found = (parameter.device for network in networks for parameter in network.parameters())
    return next(found, torch.device("cpu"))


def gradients(networks: Iterable[nn.Module]) -> list[Tensor]:
    """Return the gradient of each parameter that is trained, zeros where it has none."""
    parameters = (p for network in networks for p in network.parameters() if p.requires_grad)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def state(
    networks: list[nn.Module], optimizers: list[Optimizer]
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return weights, buffers and the optimizers' state."""
    return (
        [p for network in networks for p in network.parameters()],
        [b for network in networks for b in network.buffers()],
        [t for each in optimizers for t in optimizer_tensors(each)],
    )


def learning_rate(optimizers: list[Optimizer]) -> Any:
    """Return the learning rate of the first group of the first optimizer; None if it has none."""
    rate = next((o.param_groups[0].get("lr") for o in optimizers), None)
    return rate.detach().clone() if isinstance(rate, Tensor) else rate
