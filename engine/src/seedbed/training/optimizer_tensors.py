"""The tensors of optimizers' states, in an order that does not change, for their fingerprint."""

import hashlib

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


def optimizer_tensors(*optimizers: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of optimizers' states for their fingerprint, in parameters' order.

    Those under keys that are no parameters follow; numbers and texts of each optimizer are one
    more, on the CPU.
    """
    found: list[Tensor] = []
    for optimizer in optimizers:
        state = optimizer.state
        parameters = [p for group in optimizer.param_groups for p in group["params"] if p in state]
        entries = [state[parameter] for parameter in parameters]
        if len(state) > len(entries):
            own = {id(parameter) for parameter in parameters}
            entries += [value for key, value in state.items() if id(key) not in own]
        others: list[object] = []
        for entry in entries:
            for value in entry.values() if type(entry) is dict else [entry]:
                if isinstance(value, Tensor):  # nearly always, in each step
                    found.append(value)
                    continue
                for leaf in tree_leaves(value):
                    if isinstance(leaf, Tensor):
                        found.append(leaf)
                    elif isinstance(leaf, int | float | complex | str | bytes):
                        others.append(leaf)
        if others:
            digest = hashlib.sha256(repr(others).encode()).digest()
            found.append(torch.tensor(int.from_bytes(digest[:8], "little", signed=True)))
    return found
