"""Fingerprints: short hashes of tensors that depend on every bit, and rows of
fingerprints.csv.

The hash is multilinear: the sum of coefficient times word, in 64-bit integers that wrap
around (Lemire & Kaser 2014, https://arxiv.org/abs/1202.4961). Integer sums do not
depend on their order, so equal bits have equal hashes on every device and for every
number of threads, and the result stays on the device until it is read. Words are the
raw bits, so the hash depends on signs, -0.0 and NaN payloads; where signs of 32-bit
words alone differ, each by 2**31, hashes differ in their upper 33 bits. Words are laid
out in rows of 1024, and a word's coefficient is its column's times its row's, so the
hash depends on position. A salt for dtypes and shapes is added. A sum over shards is
the sum of their sums, so tensors that processes share have the hash of whole ones; all
processes have to hash them at the same time.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedbed import dtensors, rng
from seedbed.errors import one_line
from seedbed.names import STAGES
from seedbed.words import as_words, salt_of

_ROW_WORDS = 1024
_PIECE_WORDS = _ROW_WORDS**2  # longer lists are hashed in pieces of this size
# keys of the coefficients
_COLUMNS = 0x5EEDBED
_ROWS = 0xC0FFEE
_MAX_LAYOUTS = 256
_MAX_LISTS = 16  # that are hashed together


class _Layout(NamedTuple):
    """Where the words of lists, or of one's piece, are in the hasher's memory."""

    views: list[Tensor]  # of each tensor's words
    gaps: list[Tensor]  # the ends of lists' last rows
    rows: Tensor  # int64 (R, 1024), of all lists
    coefficients: Tensor  # of the rows, int64 (lists, R): 0 for those of other lists


class Hasher:
    """Hashes lists of tensors; the tensors may change once they are added.

    A step of a small model takes milliseconds, and any PyTorch call microseconds. So
    lists are copied by one call, into memory that is kept from step to step. On a GPU
    that Triton supports, one launch reads all of them where they are.
    """

    def __init__(self, device: torch.device) -> None:
        self._room = torch.zeros(0, dtype=torch.int64, device=device)  # words in rows
        self._at_once = in_one_launch(self._room.device) if self._room.is_cuda else None
        self._zeros = self._room  # to which sums are added
        self._layouts: dict[tuple[object, ...], _Layout] = {}
        # of the lists added, int64 (lists of a call or 1,)
        self._sums: list[Tensor] = []
        self._salts: list[int] = []
        # for each list added: a sharded tensor in it, or None
        self._sharded: list[Any] = []

    @torch.no_grad()
    def add(self, *lists: Sequence[Tensor]) -> None:
        sharded_of = [dtensors.first_of(tensors) for tensors in lists]
        self._sharded += sharded_of
        if self._at_once and self._add_at_once(lists, sharded_of):
            return
        self._salts += map(salt_of, lists)
        both = zip(lists, sharded_of, strict=True)
        words_of = [_words_of(tensors, sharded) for tensors, sharded in both]
        counts = [sum([each.numel() for each in words]) for words in words_of]
        if sum(counts) <= _PIECE_WORDS and len(lists) <= _MAX_LISTS:
            self._sums.append(self._sum(words_of))
            return
        for words, count, sharded in zip(words_of, counts, sharded_of, strict=True):
            if count <= _PIECE_WORDS:
                self._sums.append(self._sum([words]))
                continue
            sums = [self._room.new_zeros(1)]
            for number, piece in enumerate(_pieces(words)):
                if sharded is None or not all(map(_is_absent, piece)):
                    sums.append(self._sum([piece], number))
            self._sums.append(torch.cat(sums).sum(0, keepdim=True))

    def _add_at_once(
        self, lists: Sequence[Sequence[Tensor]], sharded_of: Sequence[Any]
    ) -> bool:
        """Add lists by one launch; return False if it cannot read them."""
        given = list[Sequence[Tensor | int]](lists)
        for index, sharded in enumerate(sharded_of):
            if sharded is not None:
                words = _words_of(lists[index], sharded)
                given[index] = [
                    each.numel() if _is_absent(each) else each for each in words
                ]
        if len(self._zeros) < len(lists):  # filled for many steps at once
            self._zeros = self._room.new_zeros(max(_ROW_WORDS, len(lists)))
        sums, rest = torch.split(
            self._zeros, [len(lists), len(self._zeros) - len(lists)]
        )
        assert self._at_once is not None
        salts = self._at_once(sums, given)
        if salts is None:
            return False
        self._sums.append(sums)
        self._zeros = rest
        for tensors, known, sharded in zip(lists, salts, sharded_of, strict=True):
            is_own = sharded is None  # else the words are those of this process
            self._salts.append(
                known if known is not None and is_own else salt_of(tensors)
            )
        return True

    def _sum(self, lists: list[list[Tensor]], number: int = 0) -> Tensor:
        """Return the sum of coefficients times words of each list, or of its piece
        `number`: int64 (lists,)."""
        shapes = tuple([tuple([each.shape for each in words]) for words in lists])
        layout = self._layouts.get((number, *shapes)) or self._lay_out(number, shapes)
        words = [each for several in lists for each in several]
        if words:
            # One call for all of them; pageable memory is read before it returns.
            torch._foreach_copy_(layout.views, words, non_blocking=self._room.is_cuda)
        if layout.gaps:
            torch._foreach_zero_(layout.gaps)
        columns = _coefficients(_COLUMNS, 0, self._room.device)
        return _products(layout.coefficients, _products(layout.rows, columns))

    def _lay_out(
        self, number: int, shapes: tuple[tuple[torch.Size, ...], ...]
    ) -> "_Layout":
        counts = [
            sum([shape.numel() for shape in shapes_of_list])
            for shapes_of_list in shapes
        ]
        heights = [-(-count // _ROW_WORDS) for count in counts]
        height = sum(heights)
        if height * _ROW_WORDS > len(self._room) or len(self._layouts) == _MAX_LAYOUTS:
            self._room = self._room.new_zeros(max(height * _ROW_WORDS, len(self._room)))
            self._layouts.clear()
        coefficients = self._room.new_zeros(len(shapes), height)
        known = _coefficients(_ROWS, number, self._room.device)
        views: list[Tensor] = []
        gaps: list[Tensor] = []
        start = 0
        for index, (shapes_of_list, count, rows) in enumerate(
            zip(shapes, counts, heights, strict=True)
        ):
            coefficients[index, start : start + rows] = known[:rows]
            of_list = self._room[start * _ROW_WORDS : (start + rows) * _ROW_WORDS]
            parts = torch.split(
                of_list[:count], [shape.numel() for shape in shapes_of_list]
            )
            views += [
                part.view(s) for part, s in zip(parts, shapes_of_list, strict=True)
            ]
            gaps += [of_list[count:]] if count % _ROW_WORDS else []
            start += rows
        rows_of_all = self._room[: height * _ROW_WORDS].view(-1, _ROW_WORDS)
        layout = _Layout(views, gaps, rows_of_all, coefficients)
        self._layouts[number, *shapes] = layout
        return layout

    @torch.no_grad()
    def hashes(self) -> Tensor:
        """Return the hash of each list added since the last call, as `of_lists`
        does."""
        sums = torch.cat([self._room[:0], *self._sums])
        if (sharded := dtensors.first_of(self._sharded)) is not None:
            for index, sharded_of_list in enumerate(self._sharded):
                # all have the same: count it once
                if sharded_of_list is None and dtensors.rank_of(sharded):
                    sums[index] = 0
            torch.distributed.all_reduce(sums, group=sharded.device_mesh.get_group())
        hashes = sums + _to_device(tuple(self._salts), sums.device)
        self._sums = []
        self._salts = []
        self._sharded = []
        return hashes


def of_lists(lists: Sequence[Sequence[Tensor]]) -> Tensor:
    """Hash several lists of tensors.

    Returns:
        int64 (len(lists),) on the tensors' device, not synchronised; 0 for a list
        without words. If some tensors are on a GPU, those on the CPU (some optimizers'
        counts) are moved there.
    """
    devices = {tensor.device for tensors in lists for tensor in tensors}
    hasher = Hasher(
        max(devices, key=lambda d: d.type != "cpu", default=torch.device("cpu"))
    )
    hasher.add(*lists)
    return hasher.hashes()


def of_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Return the hash of tensors in their order, an int64 scalar; see `of_lists`."""
    return of_lists([list(tensors)])[0]


def of_objects(values: Sequence[object]) -> Tensor:
    """Hash numbers, strings and other objects by their `repr`: an int64 scalar on the
    CPU."""
    digest = hashlib.sha256(repr(values).encode(errors="backslashreplace")).digest()
    return torch.tensor(int.from_bytes(digest[:8], "little", signed=True))


def text(value: int) -> str:
    """Return a hash as 16 hexadecimal digits."""
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def text_of(tensors: Iterable[Tensor]) -> str | None:
    """Return the hash of tensors as text; None if the GPU has failed or is full."""
    try:
        return text(int(of_tensors(tensors)))
    except (torch.AcceleratorError, torch.OutOfMemoryError):
        return None


def cell(value: int) -> str:
    """Return a hash as fingerprints.csv has it: 0 is that of a stage without tensors,
    which has no text."""
    return text(value) if value else ""


def rows(steps: Sequence[tuple[int, Tensor]]) -> list[dict[str, str]]:
    """Return the rows of fingerprints.csv for steps; synchronises the device.

    The hashes of a step are int64 (len(STAGES),), 0 for a stage that does not exist.
    """
    hashes = torch.stack([stages for _, stages in steps]).tolist() if steps else []
    return [
        {"step": str(step)}
        | {name: text(h) for name, h in zip(STAGES, row, strict=True) if h != 0}
        for (step, _), row in zip(steps, hashes, strict=True)
    ]


def _words_of(tensors: Iterable[Tensor], sharded: Any) -> list[Tensor]:
    """Return the words of a list; `sharded` is a sharded tensor in it, or None."""
    if sharded is None:
        return [as_words(tensor) for tensor in tensors]
    return _words_here(tensors, dtensors.rank_of(sharded))


def _words_here(tensors: Iterable[Tensor], rank: int) -> list[Tensor]:
    """Return the words that this process adds, and zeros for the others', which take no
    memory.

    Of a sharded tensor these are its rows here; of another tensor in the list, all in
    rank 0.
    """
    words: list[Tensor] = []
    for tensor in tensors:
        if not dtensors.is_sharded(tensor):
            words_of_tensor = as_words(tensor)
            contiguous = words_of_tensor.contiguous()  # `_is_absent` goes by strides
            words.append(
                contiguous
                if rank == 0
                else _absent(words_of_tensor, words_of_tensor.numel())
            )
            continue
        start, stop = dtensors.rows_of(tensor)
        rows = as_words(dtensors.local(tensor)).reshape(-1)
        of_element = as_words(torch.zeros(1, dtype=tensor.dtype)).numel()
        of_row = tensor.shape[1:].numel() * of_element
        after = (len(tensor) - stop) * of_row
        words += [_absent(rows, start * of_row), rows, _absent(rows, after)]
    return words


def _absent(words: Tensor, count: int) -> Tensor:
    return words.new_zeros(1).expand(count)


def _is_absent(words: Tensor) -> bool:
    return words.numel() == 0 or (words.dim() == 1 and words.stride() == (0,))


def _pieces(words: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the words in flat lists of _PIECE_WORDS each; only the last one has
    fewer."""
    piece: list[Tensor] = []
    room = _PIECE_WORDS
    for left in (each.reshape(-1) for each in words):
        while len(left) >= room:
            part, left = left.tensor_split([room])
            yield [*piece, part]
            piece = []
            room = _PIECE_WORDS
        piece.append(left)
        room -= len(left)
    yield piece


@cache
def in_one_launch(
    device: torch.device,
) -> (
    Callable[[Tensor, Sequence[Sequence[Tensor | int]]], Sequence[int | None] | None]
    | None
):
    """Return what adds the sums of lists at once on a GPU, if Triton works and has the
    CPU's."""
    words = torch.arange(-20_000, 20_000, dtype=torch.int32)
    lists = [
        [words, words.byte()],
        [words[3:].short(), words.view(100, 400).t(), words[::2]],
    ]
    expected = Hasher(torch.device("cpu"))
    expected.add(*lists)
    try:
        from seedbed import fingerprint_gpu

        columns = _coefficients(_COLUMNS, 0, device)
        add_sums = partial(fingerprint_gpu.add_sums, columns=columns, row_key=_ROWS)
        sums = columns.new_zeros(len(lists))
        on_device = [[each.to(device) for each in tensors] for tensors in lists]
        can = add_sums(sums, on_device) is not None
        if can and sums.tolist() == torch.cat(expected._sums).tolist():
            return add_sums
        problem = "other sums than on the CPU"
    except ImportError:  # Triton does not exist for every system
        return None
    except Exception as error:  # e.g. Triton finds no compiler of C
        problem = one_line(error)
    print(
        f"warning: fingerprints without Triton, which is slower: {problem}",
        file=sys.stderr,
    )
    return None


def _products(rows: Tensor, column: Tensor) -> Tensor:
    """Multiply an int64 matrix (R, C) by a column (C,), wrapping around; int64 (R,)."""
    if rows.is_cpu:
        return torch.mv(rows, column)  # one pass; mv does not support integers on a GPU
    return (rows * column).sum(1)


@lru_cache(maxsize=512)
def _coefficients(key: int, number: int, device: torch.device) -> Tensor:
    """Return the coefficients of the columns, or of the rows of piece `number`: int64
    (1024,)."""
    counters = np.arange(number * _ROW_WORDS, (number + 1) * _ROW_WORDS)
    return torch.from_numpy((rng.bits(key, counters) | np.uint64(1)).view(np.int64)).to(
        device
    )


@lru_cache(maxsize=512)
def _to_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(numbers).to(
        device, torch.int64, non_blocking=device.type == "cuda"
    )
