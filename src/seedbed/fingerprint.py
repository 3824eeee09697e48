"""Fingerprints: short hashes of tensors that see every bit, and the ladder made of them.

The hash is multilinear: sum of coefficient times word, in 64-bit integers that wrap around
(Lemire & Kaser 2014, https://arxiv.org/abs/1202.4961). Integer sums do not depend on their order,
so equal bits give equal hashes on every device and for every number of threads, and the result
stays on the device until somebody asks for it. Every word has a coefficient of its own, so the
hash sees position; words are the bits themselves, so it sees signs, -0.0 and NaN payloads.
"""

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors  # one call for any number of tensors

from seedbed import rng
from seedbed.record import RUNGS

# Coefficients are reused after so many words, times an odd number that is each chunk's own.
_CHUNK_WORDS = 1 << 20
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


def of_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Hash the bits of tensors, in their order.

    Returns:
        int64 scalar on the tensors' device, not synchronised; 0 for no tensors.
    """
    return of_lists([list(tensors)])[0]


@torch.no_grad()
def of_lists(lists: Sequence[Sequence[Tensor]]) -> Tensor:
    """Hash several lists of tensors, each as `of_tensors` does, in few operations.

    Returns:
        int64 (len(lists),) on the tensors' device, not synchronised. What lies on the CPU beside
        tensors on a GPU (some optimizers' counts) is moved there.
    """
    runs = itertools.groupby(itertools.chain(*lists), attrgetter("dtype", "device", "is_sparse"))
    words = [_words(list(run)) for _, run in runs] or [torch.zeros(0, dtype=torch.int32)]
    if len(words) > 1:
        device = next((w.device for w in words if w.device.type != "cpu"), words[0].device)
        waits = device.type != "cuda"
        words = [torch.cat([each.to(device, non_blocking=not waits) for each in words])]
    lengths = [sum(t.numel() * _words_per_element(t.dtype) for t in each) for each in lists]
    if sum(lengths) > _CHUNK_WORDS:
        return torch.stack([_hash_large(part) for part in torch.split(words[0], lengths)])
    coefficients, counts = _side_by_side(tuple(lengths), words[0].device)
    products = words[0].to(torch.int64).mul_(coefficients)
    return torch.stack([part.sum() for part in torch.split(products, lengths)]).add_(counts)


def of_batch(
    ids: Sequence[Tensor], contents: Sequence[Sequence[Tensor]], first: int, shards: int
) -> Tensor:
    """Hash those shards of a batch that are at hand: sample ids and contents of each.

    Args:
        first: the number of the first of them; the others follow it.
        shards: how many the batch has.

    Returns:
        int64 (2, shards), 0 for shards that are elsewhere: the sum over all processes has all.
    """
    found = of_lists([*([each] for each in ids), *contents]).view(2, len(ids))
    return torch.nn.functional.pad(found, (first, shards - first - len(ids)))


def of_step(
    before: Sequence[Tensor], model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> Tensor:
    """Hash what a step left, and put it behind what led to it.

    Args:
        before: int64 (2, shards), what `of_batch` gave in all (a batch in one shard has that
            shard's hashes, one in several the hashes of theirs); int64 (2,), of loss and gradients.

    Returns:
        int64 (len(RUNGS),) on the device, not synchronised; 0 for a rung that does not exist.
    """
    batch, passes = before
    batch = batch[:, 0] if batch.shape[1] == 1 else of_lists([[each] for each in batch])
    state: list[list[Tensor]] = [
        list(model.parameters()),
        list(model.buffers()),
        optimizer_tensors(optimizer),
    ]
    return torch.cat([batch, passes, of_lists(state)])


def text(value: int) -> str:
    """Return a hash as 16 hexadecimal digits."""
    return f"{value & 0xFFFFFFFFFFFFFFFF:016x}"


def of_file(path: Path) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the tensors of an optimizer's state, in the order of its parameters."""
    state = optimizer.state
    return [
        value
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter in state
        for value in state[parameter].values()
        if isinstance(value, Tensor)
    ]


class Ladder:
    """The fingerprints of steps, kept on the device until they are written down."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._rungs: list[Tensor] = []

    def add(self, step: int, rungs: Tensor) -> None:
        """Note a step: int64 (len(RUNGS),), 0 for a rung that does not exist."""
        self._steps.append(step)
        self._rungs.append(rungs)

    def take_rows(self) -> list[dict[str, object]]:
        """Return the rows of fingerprints.csv noted since the last call; waits for the device."""
        if not self._steps:
            return []
        rows: list[dict[str, object]] = []
        for step, hashes in zip(self._steps, torch.stack(self._rungs).tolist(), strict=True):
            there = {name: text(h) for name, h in zip(RUNGS, hashes, strict=True) if h != 0}
            rows.append({"step": step, **there})
        self._steps, self._rungs = [], []
        return rows


def _words(tensors: list[Tensor]) -> Tensor:
    """Return the bits of tensors of one dtype and device, in their order, as int32 (N,)."""
    if tensors[0].is_sparse:
        tensors = [tensor.to_dense() for tensor in tensors]
    joined: Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    joined = joined.as_strided((len(joined),), (1,))  # one element may have had any stride
    if joined.is_complex():
        joined = torch.view_as_real(joined.resolve_conj()).view(-1)
    if joined.dtype is torch.bool:
        return joined.to(torch.int32)
    return joined.view(_INTEGER_OF_SIZE[joined.element_size()]).to(torch.int32)


@lru_cache
def _words_per_element(dtype: torch.dtype) -> int:
    numbers = 2 if dtype.is_complex else 1
    return numbers * max(1, dtype.itemsize // numbers // 4)


def _hash_large(words: Tensor) -> Tensor:
    """Hash words of any number, a chunk at a time."""
    coefficients = _coefficients(words.device)
    total = torch.full((), len(words), device=words.device)
    for index, chunk in enumerate(torch.split(words, _CHUNK_WORDS)):
        hashed = chunk.to(torch.int64).mul_(coefficients[: len(chunk)]).sum()
        total += hashed if index == 0 else _chunk_factor(index) * hashed
    return total


@lru_cache(maxsize=4)
def _side_by_side(lengths: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the coefficients of several lists' words, int64 (sum,), and their numbers.

    The numbers take part in the hash, because words that are 0 add nothing to the sum.
    """
    coefficients = _coefficients(device)
    counts = torch.tensor(lengths, dtype=torch.int64, device=device)
    if len(lengths) == 1:
        return coefficients[: lengths[0]], counts
    return torch.cat([coefficients[:length] for length in lengths]), counts


@lru_cache
def _coefficients(device: torch.device) -> Tensor:
    """Return odd int64 coefficients (_CHUNK_WORDS,); 8 MiB a device, made once."""
    numbers = rng.bits(0x5EEDBED, np.arange(_CHUNK_WORDS)) | np.uint64(1)
    return torch.from_numpy(numbers.view(np.int64)).to(device)


def _chunk_factor(index: int) -> int:
    factor = int(rng.bits(0xC0FFEE, np.array([index]))[0]) | 1
    return factor - 2**64 if factor >= 2**63 else factor
