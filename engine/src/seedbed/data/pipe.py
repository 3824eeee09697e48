"""How the tensors of a batch reach the training process from a loader worker."""

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from numpy.typing import NDArray
from torch.multiprocessing import reductions

_PIPED_BYTES = 1 << 20
_NUMPY_KNOWS = {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}


def send_small_tensors_as_bytes() -> None:
    """Make this process, a loader worker, send small tensors through the pipe, wherever they are.

    PyTorch hands over shared memory, whatever the size. To receive that costs the training
    process a file handle a tensor; to read a small one out of the pipe takes less.
    """
    ForkingPickler.register(torch.Tensor, _reduce)


def _reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    plain = tensor.is_cpu and tensor.dtype in _NUMPY_KNOWS and not tensor.requires_grad
    dense = plain and tensor.layout is torch.strided and not tensor.is_nested
    if not dense or tensor.nbytes > _PIPED_BYTES or not tensor.is_contiguous():
        reduced: tuple[Any, ...] = reductions.reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        return reduced
    return _restore, (tensor.view(-1).numpy(), tuple(tensor.shape), tensor.stride())


def _restore(flat: NDArray[Any], shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    # A copy, because kernels may choose by alignment, and PyTorch's own memory has its own. A
    # stride may say something even of a dimension of size 1: which memory order is meant.
    return torch.from_numpy(flat).clone().as_strided(shape, stride)
