"""Kernels registered for the CPU, where PyTorch has a deterministic kernel for nearly
all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from torch_deterministic_kernels import switch
from torch_deterministic_kernels.operations import OPERATIONS

BY_OPERATOR = {
    operation.operator.removeprefix("aten::"): operation for operation in OPERATIONS
}
# The operation that calls another out of sight of dispatch modes.
VIA = {"_embedding_bag_dense_backward": "_embedding_bag_backward"}


def called() -> set[str]:
    """Return the operations that kernels have computed since `forget`."""
    return {item.operation for item in switch.replaced()}


def forget() -> None:
    switch._callers.clear()


def name_of(operator: str) -> str:
    """Return the name in `replaced()` of an operator."""
    return operator.rpartition(":")[2]


@contextmanager
def replacing(*operators: str) -> Iterator[None]:
    """Compute operations on the CPU by their kernels, under deterministic algorithms.

    All of them, unless some are named.
    """
    chosen = [BY_OPERATOR[name] for name in operators] or OPERATIONS
    before = len(switch._libraries)
    torch.use_deterministic_algorithms(True)
    switch.register(chosen, "cpu", everywhere=True)
    try:
        yield
    finally:
        while len(switch._libraries) > before:
            switch._libraries.pop()._destroy()
        torch.use_deterministic_algorithms(False)


class Calls(TorchDispatchMode):
    """Notes the calls of an operation with copies of their arguments; PyTorch computes
    them."""

    def __init__(self, operator: str) -> None:
        super().__init__()
        packet, _, overload = VIA.get(operator, name_of(operator)).partition(".")
        self.name = f"{packet}.{overload or 'default'}"
        self.calls = list[tuple[Any, Any, Any]]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = f"{func._opname}.{func._overloadname}"
        # whose lengths are tensors
        if name.replace(".Tensor", ".default") == self.name:
            self.calls.append((func, *changed((args, kwargs or {}), Tensor.clone)))
        return func(*args, **(kwargs or {}))


def changed(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return tree_map(lambda x: change(x) if isinstance(x, Tensor) else x, tree)
