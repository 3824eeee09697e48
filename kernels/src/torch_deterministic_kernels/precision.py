"""The precision that sums are computed in, whatever autocast and TF32 are set to."""

from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

_backends: Any = torch.backends  # PyTorch does not declare all of its attributes


def wide(tensor: Tensor) -> Tensor:
    """Return a tensor in at least float32, the precision that sums are computed in."""
    return tensor.float() if tensor.dtype.itemsize < 4 else tensor


def exact(tensor: Tensor) -> Tensor:
    """Return a factor of a matrix product: `wide`, or float64 where PyTorch would round
    float32.

    The setting, `torch.set_float32_matmul_precision`, holds for all threads of a
    process. It is not changed here: another thread may be computing a product of the
    user's.
    """
    tensor = wide(tensor)
    device = _backends.cuda if tensor.is_cuda else _backends.mkldnn
    is_rounded = device.matmul.fp32_precision not in ("ieee", "none")
    return tensor.double() if is_rounded and tensor.dtype == torch.float32 else tensor


def narrow(result: Tensor, like: Tensor) -> Tensor:
    """Return a result in the dtype and memory format of another tensor."""
    return result.to(like.dtype).contiguous(memory_format=suggest_memory_format(like))
