"""The sums of `seedbed.fingerprint` for all lists of a call in one launch, by Triton.

Each word is read once, where it is; PyTorch's operations would copy and multiply all words first.
A program adds up to _ROWS rows of one tensor, each times the coefficient of its row, multiplies
by the coefficients of the columns, and adds the result to its list's sum.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_ROWS = 16
_DIMS = 4  # of tensors that are read in place although they are not contiguous
_MAX_LAYOUTS = 256


class Launcher:
    """Sums words times their coefficients on a GPU, without waiting for it."""

    def __init__(self, columns: Tensor, row_key: int) -> None:
        """Take the columns' coefficients, int64 (width of a row,), and the key of the rows'."""
        self._columns, self._row_key = columns, row_key
        self._layouts: dict[object, _Layout] = {}

    def sums(self, lists: Sequence[Sequence[Tensor]]) -> Tensor:
        """Return the sum of each list of integers of up to 32 bits, int64 (len(lists),)."""
        columns = self._columns
        words = _readable([each for words in lists for each in words], columns.device)
        kinds = tuple([(each.dtype, each.shape, each.stride()) for each in words])
        key = kinds, tuple([len(each) for each in lists])
        if key not in self._layouts:
            if len(self._layouts) == _MAX_LAYOUTS:
                self._layouts.clear()
            numbers = [number for number, each in enumerate(lists) for _ in each]
            self._layouts[key] = _Layout(words, numbers, columns)
        layout = self._layouts[key]
        sums = columns.new_zeros(len(lists))
        if layout.programs:
            arguments = layout.addresses(words), layout.places, layout.tensors, columns, sums
            with torch.cuda.device_of(sums):  # type: ignore[no-untyped-call]
                # Fusion only concerns floats, but Triton warns if it has to choose.
                sizes = self._row_key, len(columns), _ROWS, _DIMS
                _add_rows[layout.programs,](*arguments, *sizes, enable_fp_fusion=False)
        return sums


class _Layout:
    """Places of words in their lists and in memory, for equal shapes and strides."""

    def __init__(self, words: Sequence[Tensor], lists: Sequence[int], columns: Tensor) -> None:
        self._device, self._pointers = columns.device, tuple[int, ...]()
        width, places = len(columns), list[list[int]]()
        tensors, starts = list[int](), dict[int, int]()  # of each program; next word of each list
        for each, number in zip(words, lists, strict=True):
            start, length = starts.get(number, 0), each.numel()
            starts[number] = start + length
            in_order = each.is_contiguous()
            missing = [] if in_order else [1] * (_DIMS - each.dim())
            shape = [1] * _DIMS if in_order else [*missing, *each.shape]
            strides = [0] * _DIMS if in_order else [*missing, *each.stride()]
            place = [len(tensors), start, length, number, each.element_size(), int(in_order)]
            rows = -(-(start + length) // width) - start // width
            tensors += [len(places)] * (-(-rows // _ROWS) if length else 0)
            places.append([*place, *shape, *strides])
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


def _readable(words: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return words that the kernel can read; those on the CPU are moved as one tensor."""
    away = [each for each in words if each.device != device]
    if away:
        joined = torch.cat([each.reshape(-1).int() for each in away]).to(device, non_blocking=True)
        moved = iter(torch.split(joined, [each.numel() for each in away]))
        words = [next(moved) if each.device != device else each for each in words]
    # The kernel computes with strides in 32 bits.
    simple = [each.dim() <= _DIMS and each.numel() < 2**31 for each in words]
    return [w if ok else w.contiguous() for w, ok in zip(words, simple, strict=True)]


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
