"""The sums of `seedbed.fingerprint` for all lists of a call in one launch, by Triton.

Each word is read once, where it is; PyTorch's operations would copy and multiply all words first.
A program adds up to _ROWS rows of one tensor, each times the coefficient of its row, multiplies
by the coefficients of the columns, and adds the result to its list's sum.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16
_DIMS = 4  # of tensors that are read in place although they are not contiguous
_Kind = tuple[int, torch.Size, tuple[int, ...]]  # bytes of a word, shape, strides if out of order


def sums(lists: Sequence[Sequence[Tensor]], columns: Tensor, row_key: int) -> Tensor:
    """Return the sums of words times coefficients, int64 (len(lists),), without waiting for a GPU.

    Words are integers of up to 32 bits. `columns` are the columns' coefficients on the GPU, int64
    (width of a row,), `row_key` is the key of the rows'.
    """
    words = _readable([each for words in lists for each in words], columns.device)
    kinds = [(w.element_size(), w.shape, () if w.is_contiguous() else w.stride()) for w in words]
    layout = _layout(tuple(kinds), tuple(map(len, lists)), len(columns), columns.device)
    found = columns.new_zeros(len(lists))
    if layout.programs:
        tensors = layout.addresses(words), layout.places, layout.tensors, columns, found
        sizes = row_key, len(columns), _ROWS, _DIMS
        with torch.cuda.device_of(found):  # type: ignore[no-untyped-call]
            # Fusion concerns floats alone, but Triton warns if it has to choose.
            _add_rows[layout.programs,](*tensors, *sizes, enable_fp_fusion=False)
    return found


class _Layout:
    """Places of words in their lists and in memory, which tensors of equal kinds share."""

    def __init__(
        self, kinds: Sequence[_Kind], counts: Sequence[int], width: int, device: torch.device
    ) -> None:
        self._device, self._pointers = device, tuple[int, ...]()
        places, left = list[list[int]](), iter(kinds)
        tensors = list[int]()  # of each program
        for number, count in enumerate(counts):
            start = 0
            for size, shape, strides in islice(left, count):
                length, missing = math.prod(shape), [1] * (_DIMS - len(strides))
                rows = -(-(start + length) // width) - start // width
                place = [len(tensors), start, length, number, size, int(not strides)]
                tensors += [len(places)] * (-(-rows // _ROWS) if length else 0)
                places.append([*place, *missing, *shape[: len(strides)], *missing, *strides])
                start += length
        self.programs = len(tensors)
        self.places, self.tensors = self._sent(places), self._sent(tensors)

    def addresses(self, words: Sequence[Tensor]) -> Tensor:
        """Return the words' addresses on the device, sent only if they differ from the last."""
        pointers = tuple([each.data_ptr() for each in words])
        if pointers != self._pointers:
            self._pointers, self._addresses = pointers, self._sent(pointers)
        return self._addresses

    def _sent(self, numbers: Sequence[object]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64).to(self._device, non_blocking=True)


_layout = lru_cache(maxsize=256)(_Layout)


def _readable(words: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return words that the kernel can read; those on the CPU are moved as one tensor."""
    away = [each for each in words if each.device != device]
    if away:
        joined = torch.cat([each.reshape(-1).int() for each in away]).to(device, non_blocking=True)
        moved = iter(torch.split(joined, [each.numel() for each in away]))
        words = [next(moved) if each.device != device else each for each in words]
    # The kernel divides in 32 bits.
    return [w if w.dim() <= _DIMS and w.numel() < 2**31 else w.contiguous() for w in words]


@triton.jit
def _add_rows(
    addresses, places, tensors, columns, sums,
    KEY: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, DIMS: tl.constexpr,
):  # fmt: skip
    tensor = tl.load(tensors + tl.program_id(0))
    address, place = tl.load(addresses + tensor), places + tensor * (6 + 2 * DIMS)
    first, start, length = tl.load(place), tl.load(place + 1), tl.load(place + 2)
    size, in_order = tl.load(place + 4), tl.load(place + 5)
    column = tl.arange(0, WIDTH)
    total = tl.zeros((WIDTH,), tl.int64)
    for number in range(ROWS):
        row = start // WIDTH + (tl.program_id(0) - first) * ROWS + number
        before = row * WIDTH - start  # words of the tensor before this row; negative in its first
        inside = (column >= -before) & (column < length - before)
        at = before + column
        if in_order == 0:
            index, at = at.to(tl.int32), tl.zeros((WIDTH,), tl.int64)
            for dim in tl.static_range(DIMS - 1, -1, -1):
                extent = tl.load(place + 6 + dim).to(tl.int32)
                at += index % extent * tl.load(place + 6 + DIMS + dim)
                index = index // extent
        if size == 4:
            words = tl.load(address.to(tl.pointer_type(tl.int32)) + at, inside, 0).to(tl.int64)
        elif size == 2:
            words = tl.load(address.to(tl.pointer_type(tl.int16)) + at, inside, 0).to(tl.int64)
        else:
            words = tl.load(address.to(tl.pointer_type(tl.int8)) + at, inside, 0).to(tl.int64)
        # The row's coefficient, as `rng.bits`.
        x = KEY + (row + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB
        total += words * ((x ^ (x >> 31)) | 1).to(tl.int64, bitcast=True)
    # Integers, so the order in which programs add does not matter.
    tl.atomic_add(sums + tl.load(place + 3), tl.sum(total * tl.load(columns + column), axis=0))
