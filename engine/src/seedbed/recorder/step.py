"""The tensors of a step in a loop of one's own, whatever its parts are made of."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seedbed.data.tensors import tensors_of
from seedbed.errors import InputError
from seedbed.training.optimizer_tensors import optimizer_tensors

Optimizer = torch.optim.Optimizer
MOST = 1 << 63  # of the numbers that torch has
_NUMBERS = "biufc"  # kinds of NumPy's dtypes that torch may have


def contents(value: Any) -> list[Tensor]:
    """Return the tensors of a batch, in order.

    Arrays count as tensors; numbers, texts and arrays that are no tensors are one more, on the CPU.
    """
    tensors: list[Tensor] = []
    others: list[object] = []
    for leaf in _leaves(value):
        if isinstance(leaf, Tensor):
            tensors.append(leaf)
        else:
            others.append(leaf)
    if others:
        tensors.append(_digest(others))
    return tensors


def sample_ids(ids: Any) -> list[Tensor]:
    """Return the ids of samples as tensors: int64 (B,) of numbers, a digest of anything else."""
    if ids is None:
        return []
    if isinstance(ids, Tensor):
        return [ids]
    if isinstance(ids, range | list | tuple) and all(
        type(each) is int and abs(each) < MOST for each in ids
    ):
        return [torch.tensor(list(ids), dtype=torch.int64)]
    return contents(ids)


def named_losses(losses: Any) -> dict[str, Tensor]:
    """Return the losses of a step by name, each a scalar whose later changes do not matter.

    Raises:
        InputError: one is no number.
    """
    if not isinstance(losses, Mapping):
        losses = dict(enumerate(losses)) if isinstance(losses, list | tuple) else {"loss": losses}
    return {str(name): scalar("losses", value, f" for {name}") for name, value in losses.items()}


def scalar(argument: str, value: Any, where: str = "") -> Tensor:
    """Return a copy of a number as a tensor without dimensions.

    Raises:
        InputError: it is no number.
    """
    is_number = isinstance(value, int | float | np.number)
    is_scalar = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    if not is_number and not is_scalar:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InputError(
            f"{argument}: expected a scalar, got {shape}{where}; give its mean or its sum"
        )
    return torch.as_tensor(value).detach().clone().reshape(())


def named_metrics(metric: Any) -> dict[str, Tensor | float]:
    """Return what is logged beside the losses by name: a number keeps its digits.

    Raises:
        InputError: one is no scalar.
    """
    named = metric if isinstance(metric, Mapping) else {"metric": metric}
    given = {str(name): value for name, value in named.items() if value is not None}
    copies = {name: scalar("metric", value, f" for {name}") for name, value in given.items()}
    return {
        name: copies[name] if isinstance(value, Tensor) else float(value)
        for name, value in given.items()
    }


def values(losses: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the numbers to log: the losses, and without one called `loss` their sum by that name.

    Empty without any.
    """
    if not losses or "loss" in losses:
        return dict(losses)
    first, *more = losses.values()
    for each in more:
        first = first + each.to(first.device)
    return {**losses, "loss": first}


def require_steps(name: str, value: object, least: int, optional: bool = False) -> None:
    """Raise InputError if an argument is no number of steps."""
    if not (optional and value is None) and (type(value) is not int or value < least):
        raise InputError(f"{name}: expected an integer >= {least}, got {value!r}; try {name}=1")


def device(networks: Iterable[nn.Module]) -> torch.device:
    """Return where the first weight lies."""
    found = (parameter.device for network in networks for parameter in network.parameters())
    return next(found, torch.device("cpu"))


def modules(model: Any) -> list[nn.Module]:
    """Return one network, or several in a list or a mapping, as a list."""
    return _several(model, nn.Module)


def require_weights(networks: Iterable[nn.Module]) -> None:
    """Raise InputError if a network has weights without values."""
    for network in networks:
        for name, weight in (*network.named_parameters(), *network.named_buffers()):
            if is_lazy(weight) or weight.is_meta:
                kind = "none yet" if is_lazy(weight) else "the meta device"
                raise InputError(
                    f"model: expected weights with values, got {kind} for {name}; record a step "
                    "after the model has them"
                )


def optimizers(given: Any) -> list[Optimizer]:
    """Return one optimizer, or several in a list or a mapping, as a list."""
    return _several(given, Optimizer)


def gradients(model: Any) -> list[Tensor]:
    """Return the gradient of each parameter that is trained, zeros where it has none."""
    parameters = (p for module in modules(model) for p in module.parameters() if p.requires_grad)
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def state(model: Any, given: Any) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Return weights, buffers and the optimizers' state."""
    networks = modules(model)
    return (
        [p for module in networks for p in module.parameters()],
        [b for module in networks for b in module.buffers()],
        [t for each in optimizers(given) for t in optimizer_tensors(each)],
    )


def learning_rate(given: Any) -> Any:
    """Return the learning rate of the first group of the first optimizer; None if it has none."""
    rate = next((o.param_groups[0].get("lr") for o in optimizers(given)), None)
    return rate.detach().clone() if isinstance(rate, Tensor) else rate


def _several(value: Any, kind: type[Any]) -> list[Any]:
    """Return one, or those in a list or a mapping; what is no such object fails when it is used."""
    if isinstance(value, Mapping) and not isinstance(value, kind):
        value = list(value.values())
    is_many = isinstance(value, list | tuple) and not isinstance(value, kind)
    return [each for each in (value if is_many else [value]) if each is not None]


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Tensor) and not value.is_nested:
        yield value
    elif isinstance(value, Mapping):
        yield from _each(value.values())
    elif isinstance(value, list | tuple) and not hasattr(value, "to"):
        yield from _each(value)
    elif isinstance(value, np.ndarray | np.generic):
        yield _of_array(np.asarray(value))
    elif isinstance(value, bool | int | float | complex | str | bytes | range):
        yield value
    elif value is not None:
        yield from tensors_of(value)


def _each(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        yield from _leaves(value)


def _of_array(array: np.ndarray[Any, Any]) -> object:
    """Return an array as a tensor; where torch has no such type, as text."""
    array = np.array(array, order="C")  # its memory is torch's to read, whatever it was
    if array.dtype.kind in _NUMBERS and array.dtype.isnative:
        with suppress(TypeError):  # long doubles
            return torch.from_numpy(array)
    content = array.tolist() if array.dtype == object else array.tobytes()
    return array.dtype.str, array.shape, content


def _digest(values: list[object]) -> Tensor:
    digest = hashlib.sha256(repr(values).encode(errors="backslashreplace")).digest()
    return torch.tensor(int.from_bytes(digest[:8], "little", signed=True))
