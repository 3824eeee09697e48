"""What an entry of the probe's catalogue says."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Input:
    """A tensor to draw: floats in [-1, 1), or integers in [0, below) where `below` is given."""

    shape: tuple[int, ...]
    below: int | None = None
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True)
class Operation:
    """One operation to try.

    Attributes:
        name: as the table shows it.
        call: takes the tensors (after the module, if there is one) and returns a tensor or a
            tuple of them. It leaves the tensors it gets as they are.
        inputs: what is drawn for the call, which is differentiated by every float among them.
        module: builds a module on the CPU; its parameters are differentiated too.
    """

    name: str
    call: Callable[..., Tensor | tuple[Tensor, ...]]
    inputs: tuple[Input, ...]
    module: Callable[[], nn.Module] | None = None


def floats(*shape: int, dtype: torch.dtype = torch.float32) -> Input:
    """Ask for floats in [-1, 1)."""
    return Input(shape, dtype=dtype)


def integers(*shape: int, below: int) -> Input:
    """Ask for int64 numbers in [0, below)."""
    return Input(shape, below, torch.int64)


# 500,000 numbers that go to 1,000 places, 10,000 rows that go to 100: many writers to each.
TABLE = floats(1000)
SOURCE = floats(500_000)
INDEX = integers(500_000, below=1000)
ROWS = floats(100, 64)
ROW_SOURCE = floats(10_000, 64)
ROW_INDEX = integers(10_000, below=100)

# A batch of lines, images and volumes, with channels.
LINE = floats(16, 16, 256)
IMAGE = floats(16, 16, 28, 28)
VOLUME = floats(4, 8, 12, 12, 12)
