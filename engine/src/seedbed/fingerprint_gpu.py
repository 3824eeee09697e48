"""The sums of `seedbed.fingerprint` for all lists of a call in one launch, by Triton.

Each word is read once, where it is; PyTorch's operations would copy and multiply all
words first. Tensors that are not contiguous take a second launch. A program adds up to
_ROWS rows of one tensor, each times the coefficient of its row, multiplies by the
coefficients of the columns, and adds the result to its list's sum.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from seedbed.words import as_words, salt

_ROWS = 32
_DIMS = 4  # of tensors that are read in place although they are not contiguous
_PLAIN = {Tensor, torch.nn.Parameter}  # other classes may have no memory of their own
_WORDS = {  # the words of an element, and their bytes
    **dict.fromkeys((torch.bool, torch.uint8, torch.int8), (1, 1)),
    **dict.fromkeys((torch.int16, torch.float16, torch.bfloat16), (1, 2)),
    **dict.fromkeys((torch.int32, torch.float32), (1, 4)),
    **dict.fromkeys((torch.int64, torch.float64), (2, 4)),
}


class _Kind(NamedTuple):
    """What tensors need to have in common to share a layout."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # None: contiguous


@dataclass(frozen=True, eq=False)
class _Kinds:
    """The kinds of a list's tensors; lists with equal ones share one object."""

    of_tensors: tuple[_Kind | int, ...]  # an integer: so many words that are 0
    salt: int | None  # None: not known


# What decides about most lists, by calls that Python makes once for a list.
_FACTS = attrgetter("dtype", "shape", "device", "layout", "is_nested")
_IS_CONTIGUOUS = methodcaller("is_contiguous")
_IS_NEGATIVE = methodcaller("is_neg")


def add_sums(
    sums: Tensor, lists: Sequence[Sequence[Tensor | int]], columns: Tensor, row_key: int
) -> Sequence[int | None] | None:
    """Add the sums of words times coefficients, without waiting for a GPU.

    Args:
        sums: int64 (len(lists),), on the GPU.
        lists: tensors anywhere; an integer stands for so many words that are 0.
        columns: the columns' coefficients, int64 (width of a row,), on the GPU.
        row_key: the key of the rows' coefficients.

    Returns:
        The salts of lists, where they are known; None if the kernel cannot read them.
    """
    words = list[Tensor]()
    kinds_of_lists = list[_Kinds]()
    for tensors in lists:
        kinds = _in_order(tensors, sums.device)
        if kinds is None:
            read = _readable(tensors, sums.device)
            if read is None:
                return None
            tensors, kinds = read
        words += tensors  # type: ignore[arg-type]  # no integers
        kinds_of_lists.append(kinds)
    layout = _layout(tuple(kinds_of_lists), len(columns), columns.device)
    for in_order, tensors_of, programs in layout.launches:
        arguments = (
            layout.addresses(words),
            layout.descriptors,
            tensors_of,
            columns,
            sums,
        )
        sizes = row_key, len(columns), _ROWS, _DIMS, in_order
        with torch.cuda.device_of(sums):  # type: ignore[no-untyped-call]
            # Fusion concerns floats alone, but Triton warns if it has to choose.
            _add_rows[programs,](*arguments, *sizes, enable_fp_fusion=False)
    return [each.salt for each in kinds_of_lists]


def _in_order(tensors: Sequence[Tensor | int], device: torch.device) -> _Kinds | None:
    """Return the kinds of tensors if all are contiguous memory of the device, else
    None."""
    if not _PLAIN.issuperset(map(type, tensors)):
        return None
    try:
        kinds = _of_facts(tuple(map(_FACTS, tensors)), device)
    except RuntimeError:  # nested tensors may have no shape
        return None
    is_read = (
        kinds
        and all(map(_IS_CONTIGUOUS, tensors))
        and not any(map(_IS_NEGATIVE, tensors))
    )
    return kinds if is_read else None


@lru_cache(maxsize=512)
def _of_facts(facts: Sequence[tuple[Any, ...]], device: torch.device) -> _Kinds | None:
    for dtype, _, device_of_tensor, layout, is_nested in facts:
        if (
            dtype not in _WORDS
            or device_of_tensor != device
            or layout is not torch.strided
            or is_nested
        ):
            return None
    kinds = tuple([_Kind(dtype, shape, None) for dtype, shape, *_ in facts])
    return _Kinds(kinds, salt([(dtype, shape) for dtype, shape, *_ in facts]))


_other_kinds = lru_cache(maxsize=512)(lambda of_tensors: _Kinds(of_tensors, None))


def _readable(
    tensors: Sequence[Tensor | int], device: torch.device
) -> tuple[list[Tensor], _Kinds] | None:
    """Return tensors that the kernel can read, and their kinds; None if it cannot.

    Those on the CPU, such as ids of samples and counts of optimizers, are moved as one.
    """
    words = list[Tensor]()
    kinds = list[_Kind | int]()
    away = dict[int, Tensor]()
    for tensor in tensors:
        if isinstance(tensor, int):
            kinds.append(tensor)
            continue
        kind = _kind_in_place(tensor, device)
        if kind is None:
            tensor = as_words(tensor).contiguous()
            if tensor.device != device and type(tensor) is Tensor:
                tensor = away[len(words)] = tensor.reshape(-1).int()
            kind = _kind_in_place(tensor, tensor.device)
            if kind is None:
                return None
        words.append(tensor)
        kinds.append(kind)
    if away:
        joined = torch.cat(list(away.values())).to(device, non_blocking=True)
        moved = torch.split(joined, [len(each) for each in away.values()])
        for index, moved_words in zip(away, moved, strict=True):
            words[index] = moved_words
    return words, _other_kinds(tuple(kinds))


def _kind_in_place(tensor: Tensor, device: torch.device) -> _Kind | None:
    """Return the kind of a tensor that can be read where it is; None if it cannot."""
    if (
        type(tensor) not in _PLAIN
        or tensor.dtype not in _WORDS
        or tensor.device != device
    ):
        return None
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_neg():
        return None
    if tensor.is_contiguous():
        return _Kind(tensor.dtype, tensor.shape, None)
    # The kernel divides in 32 bits.
    if tensor.dim() > _DIMS or tensor.numel() >= 2**31 or _WORDS[tensor.dtype][0] > 1:
        return None
    return _Kind(tensor.dtype, tensor.shape, tensor.stride())


class _Layout:
    """Places of words in their lists and in memory, which tensors of equal kinds
    share."""

    def __init__(
        self, lists: Sequence[_Kinds], width: int, device: torch.device
    ) -> None:
        self._device = device
        self._known = dict[tuple[int, ...], Tensor]()
        descriptors = list[list[int]]()
        # The tensor of each program; those in no order have programs, and a launch, of
        # their own.
        tensors: dict[bool, list[int]] = {True: [], False: []}
        for number, kinds in enumerate(lists):
            start = 0
            for kind in kinds.of_tensors:
                if isinstance(kind, int):
                    start += kind
                    continue
                count, size = _WORDS[kind.dtype]
                length = math.prod(kind.shape) * count
                rows = -(-(start + length) // width) - start // width
                launched = tensors[kind.strides is None]
                descriptor = [len(launched), start, length, number, size]
                launched += [len(descriptors)] * (-(-rows // _ROWS) if length else 0)
                shape = [length] if kind.strides is None else kind.shape
                missing = [1] * (_DIMS - len(shape))
                descriptors.append(
                    [*descriptor, *missing, *shape, *missing, *(kind.strides or [1])]
                )
                start += length
        self.descriptors = self._sent(descriptors)
        self.launches = [
            (ok, self._sent(of), len(of)) for ok, of in tensors.items() if of
        ]

    def addresses(self, words: Sequence[Tensor]) -> Tensor:
        """Return the words' addresses on the device, sent only if they have not been.

        Memory that each step allocates again is often that of an earlier step.
        """
        pointers = tuple([each.data_ptr() for each in words])
        if pointers not in self._known:
            if len(self._known) == 64:
                self._known.clear()
            self._known[pointers] = self._sent(pointers)
        return self._known[pointers]

    def _sent(self, numbers: Sequence[object]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(
            self._device, non_blocking=True
        )


_layout = lru_cache(maxsize=256)(_Layout)


@triton.jit
def _add_rows(
    addresses,
    descriptors,
    tensors,
    columns,
    sums,
    KEY: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    IN_ORDER: tl.constexpr,
):
    tensor = tl.load(tensors + tl.program_id(0))
    address = tl.load(addresses + tensor)
    descriptor = descriptors + tensor * (5 + 2 * DIMS)
    start = tl.load(descriptor + 1)
    size = tl.load(descriptor + 4)
    row = start // WIDTH + (tl.program_id(0) - tl.load(descriptor)) * ROWS
    # words of the tensor before this row; negative in its first
    before = row * WIDTH - start
    if size == 4:
        as_int32 = address.to(tl.pointer_type(tl.int32))
        total = _sum_of_rows(
            as_int32, before, row, descriptor, KEY, WIDTH, ROWS, DIMS, IN_ORDER
        )
    elif size == 2:
        as_int16 = address.to(tl.pointer_type(tl.int16))
        total = _sum_of_rows(
            as_int16, before, row, descriptor, KEY, WIDTH, ROWS, DIMS, IN_ORDER
        )
    else:
        as_int8 = address.to(tl.pointer_type(tl.int8))
        total = _sum_of_rows(
            as_int8, before, row, descriptor, KEY, WIDTH, ROWS, DIMS, IN_ORDER
        )
    total *= tl.load(columns + tl.arange(0, WIDTH))
    # Integers, so the order in which programs add does not matter.
    tl.atomic_add(sums + tl.load(descriptor + 3), tl.sum(total, axis=0), sem="relaxed")


@triton.jit
def _sum_of_rows(
    words,
    before,
    row,
    descriptor,
    KEY: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DIMS: tl.constexpr,
    IN_ORDER: tl.constexpr,
):
    """Return the sum of a tensor's rows times their coefficients: int64 (WIDTH,).

    A word w is added as w + 2**31, an unsigned number of 32 bits, times the two halves
    of its coefficient, which takes two multiplications instead of four; 2**31 times the
    sum of the coefficients is subtracted at the end.
    """
    column = tl.arange(0, WIDTH)
    length = tl.load(descriptor + 2)
    low = tl.zeros((WIDTH,), tl.uint64)
    high = tl.zeros((WIDTH,), tl.uint32)
    coefficients = tl.zeros((), tl.uint64)
    for number in range(ROWS):
        # The row's coefficient, as `rng.bits`.
        x = KEY + (row + number + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        x = (x ^ (x >> 31)) | 1
        first = before + number * WIDTH
        if IN_ORDER:
            at = words + first + column
            if (first >= 0) & (first + WIDTH <= length):
                row_words = tl.load(at)
            else:
                inside = (column >= -first) & (column < length - first)
                row_words = tl.load(at, inside, 0)
        else:
            inside = (column >= -first) & (column < length - first)
            index = (first + column).to(tl.int32)
            offset = tl.zeros((WIDTH,), tl.int64)
            for dim in tl.static_range(DIMS - 1, -1, -1):
                extent = tl.load(descriptor + 5 + dim).to(tl.int32)
                offset += index % extent * tl.load(descriptor + 5 + DIMS + dim)
                index = index // extent
            row_words = tl.load(words + offset, inside, 0)
        shifted = row_words.to(tl.int32).to(tl.uint32, bitcast=True) ^ 0x80000000
        low += shifted.to(tl.uint64) * x.to(tl.uint32).to(tl.uint64)
        high += shifted * (x >> 32).to(tl.uint32)
        coefficients += x
    return (low + (high.to(tl.uint64) << 32) - (coefficients << 31)).to(
        tl.int64, bitcast=True
    )
