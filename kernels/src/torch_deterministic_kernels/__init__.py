"""Deterministic kernels for operations that PyTorch refuses under deterministic
algorithms.

They replace PyTorch's kernels below autograd and autocast, on the devices where these
are not deterministic. Importing this changes nothing; `enable` does.

Attributes:
    enable: compute the operations by these kernels; also a context manager.
    disable: give them back to PyTorch.
    is_enabled: whether they are in use.
    replaced: the operations that were computed by them, and where they were called.
    locate: let `replaced` name the modules of a model.
    locate_backward: a context in which it names those of backward passes, too.
    table: the operations, with the file of PyTorch's kernel, devices, cost.
"""

from torch_deterministic_kernels.callers import locate, locate_backward
from torch_deterministic_kernels.operations import OPERATIONS, Operation
from torch_deterministic_kernels.switch import (
    Replaced,
    disable,
    enable,
    is_enabled,
    replaced,
)

__all__ = [
    "Operation",
    "Replaced",
    "disable",
    "enable",
    "is_enabled",
    "locate",
    "locate_backward",
    "replaced",
    "table",
]
__version__ = "1.0.0"


def table() -> tuple[Operation, ...]:
    """Return the operations that the kernels replace."""
    return OPERATIONS
