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
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from seedbed import rng
from seedbed.record import RUNGS

# Coefficients are reused after so many words, times an odd number that is each chunk's own.
_CHUNK_WORDS = 1 << 20
_INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}


@torch.no_grad()
def of_tensors(tensors: Iterable[Tensor]) -> Tensor:
    """Hash the bits of tensors, in their order.

    Returns:
        int64 scalar on the tensors' device, not synchronised; 0 for no tensors.
    """
    dense = (tensor.to_dense() if tensor.is_sparse else tensor for tensor in tensors)
    runs = itertools.groupby(dense, key=lambda tensor: tensor.dtype)
    words = [_words([tensor.reshape(-1) for tensor in run]) for _, run in runs]
    if not words:
        return torch.zeros((), dtype=torch.int64)
    joined = words[0] if len(words) == 1 else torch.cat(words)
    # The length takes part, because words that are 0 add nothing to the sum.
    total = _hash_chunk(joined[:_CHUNK_WORDS]) + len(joined)
    for index in range(1, -(-len(joined) // _CHUNK_WORDS)):
        chunk = joined[index * _CHUNK_WORDS : (index + 1) * _CHUNK_WORDS]
        total = total + _chunk_factor(index) * _hash_chunk(chunk)
    return total


def combine(hashes: Sequence[Tensor]) -> Tensor:
    """Hash several hashes into one, in their order: a batch's from its shards'."""
    return hashes[0] if len(hashes) == 1 else of_tensors([torch.stack(list(hashes))])


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
        self._absent: tuple[str, ...] = ()

    def add(self, step: int, rungs: dict[str, Tensor | None]) -> None:
        """Note the rungs of a step: a hash for each of RUNGS, None for what does not exist."""
        present = [hash for hash in rungs.values() if hash is not None]
        device = next((h.device for h in present if h.device.type != "cpu"), present[0].device)
        zero = torch.zeros((), dtype=torch.int64, device=device)
        ordered = [rungs.get(name) for name in RUNGS]
        self._absent = tuple(n for n, h in zip(RUNGS, ordered, strict=True) if h is None)
        self._steps.append(step)
        self._rungs.append(
            torch.stack([zero if h is None else h.to(device, non_blocking=True) for h in ordered])
        )

    def take_rows(self) -> list[dict[str, object]]:
        """Return the rows of fingerprints.csv noted since the last call; waits for the device."""
        if not self._steps:
            return []
        values = torch.stack(self._rungs).tolist()
        rows: list[dict[str, object]] = []
        for step, hashes in zip(self._steps, values, strict=True):
            row = {n: text(h) for n, h in zip(RUNGS, hashes, strict=True) if n not in self._absent}
            rows.append({"step": step, **row})
        self._steps, self._rungs = [], []
        return rows


def _words(flat: list[Tensor]) -> Tensor:
    """View the bits of 1-D tensors of one dtype as int32, in their order, 1-D."""
    joined = flat[0] if len(flat) == 1 else torch.cat(flat)
    if joined.is_complex():
        joined = torch.view_as_real(joined).view(-1)
    if joined.dtype is torch.bool:
        return joined.to(torch.int32)
    return joined.view(_INTEGER_OF_SIZE[joined.element_size()]).to(torch.int32)


def _hash_chunk(words: Tensor) -> Tensor:
    return torch.mul(words, _coefficients(words.device)[: len(words)]).sum()


@lru_cache
def _coefficients(device: torch.device) -> Tensor:
    """Return odd int64 coefficients (_CHUNK_WORDS,); 8 MiB a device, made once."""
    numbers = rng.bits(0x5EEDBED, np.arange(_CHUNK_WORDS)) | np.uint64(1)
    return torch.from_numpy(numbers.view(np.int64)).to(device)


def _chunk_factor(index: int) -> int:
    factor = int(rng.bits(0xC0FFEE, np.array([index]))[0]) | 1
    return factor - 2**64 if factor >= 2**63 else factor
