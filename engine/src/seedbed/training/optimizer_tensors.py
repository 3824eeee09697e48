"""The tensors of optimizers' states, in an order that does not change, for their fingerprint."""

import hashlib

import torch
from torch import Tensor


def optimizer_tensors(*optimizers: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of optimizers' states for their fingerprint, in parameters' order.

    Those under keys that are no parameters follow; numbers and texts are one more, on the CPU.
    """
    if len(optimizers) > 1:
        return [tensor for each in optimizers for tensor in optimizer_tensors(each)]
    (optimizer,) = optimizers
    state = optimizer.state
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p in state]
    entries = [state[parameter] for parameter in parameters]
    if len(state) > len(entries):
        own = {id(parameter) for parameter in parameters}
        entries += [value for key, value in state.items() if id(key) not in own]
    tensors: list[Tensor] = []
    others: list[object] = []
    for entry in entries:
        for value in entry.values() if type(entry) is dict else [entry]:
            if isinstance(value, Tensor):  # nearly always, in each step
                tensors.append(value)
            else:
                _sort_out(value, tensors, others)
    if others:
        digest = hashlib.sha256(repr(others).encode()).digest()
        tensors.append(torch.tensor(int.from_bytes(digest[:8], "little", signed=True)))
    return tensors


def _sort_out(value: object, tensors: list[Tensor], others: list[object]) -> None:
    """Add what is in nested dictionaries, lists and tuples to the tensors, or to the others."""
    if isinstance(value, Tensor):
        tensors.append(value)
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            _sort_out(each, tensors, others)
    elif isinstance(value, int | float | complex | str | bytes):
        others.append(value)
