"""The words of tensors, their bits as integers; and the salts of lists of tensors."""

import hashlib
import math
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor

# The usual dtypes, whose tensors are viewed as integers without a copy.
_INTEGER = {
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
    torch.int64: torch.int32,  # two words each
}
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32}


def as_words(tensor: Tensor) -> Tensor:
    """Return the bits of a tensor as integers of up to 32 bits, in the same order."""
    try:
        return tensor.view(_INTEGER[tensor.dtype])
    except (KeyError, RuntimeError):  # other dtypes, sparse tensors, lazy negatives
        pass
    if tensor.is_nested:
        return _joined(_parts(tensor))
    if tensor.is_quantized:
        return _joined([tensor.int_repr(), *_scales(tensor)])
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    flat = dense.resolve_conj().resolve_neg().contiguous().view(-1)
    flat = flat.as_strided((len(flat),), (1,))  # a single element may have any stride
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    return flat.view(_INTEGER_OF_SIZE.get(flat.element_size(), torch.int32))


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([as_words(part.detach()).reshape(-1).int() for part in parts])


def _parts(nested: Tensor) -> list[Tensor]:
    """Return the components of a nested tensor, and their shapes, which no salt
    contains."""
    # its methods belong to a private class of PyTorch
    if nested.layout is torch.jagged:
        values = nested.values()
        offsets = nested.offsets()  # type: ignore[attr-defined]
        lengths = nested.lengths()  # type: ignore[attr-defined]
        parts = [values, offsets] if lengths is None else [values, offsets, lengths]
        shapes = [values.shape]
    else:
        parts = list(nested.unbind())
        shapes = [part.shape for part in parts]
    numbers = [number for shape in shapes for number in (len(shape), *shape)]
    return [*parts, torch.tensor(numbers, device=nested.device)]


def _scales(quantized: Tensor) -> list[Tensor]:
    """Return what turns the integers of a quantized tensor into numbers."""
    if quantized.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scale = quantized.q_scale()
        zero_point = quantized.q_zero_point()
        numbers = [torch.tensor(scale, dtype=torch.float64), torch.tensor(zero_point)]
    else:
        axis = torch.tensor(quantized.q_per_channel_axis())
        numbers = [
            quantized.q_per_channel_scales(),
            quantized.q_per_channel_zero_points(),
            axis,
        ]
    return [each.to(quantized.device) for each in numbers]


def salt_of(tensors: Iterable[Tensor]) -> int:
    """Return the salt of a list of tensors, also of nested ones."""
    return _known_salt(
        tuple([(t.dtype, () if t.is_nested else t.shape) for t in tensors])
    )


def salt(dtypes_and_shapes: Iterable[tuple[torch.dtype, tuple[int, ...]]]) -> int:
    """Return what a list's dtypes and shapes add to its hash; 0 if it has no
    elements."""
    known = list(dtypes_and_shapes)
    if not any(math.prod(shape) for _, shape in known):
        return 0
    names = ";".join(f"{dtype} {tuple(shape)}" for dtype, shape in known)
    digest = hashlib.blake2b(names.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


_known_salt = lru_cache(maxsize=512)(salt)
