"""Randomness as a pure function of (seed, stream, position).

Nothing here remembers what was drawn before: a draw depends on *what* it is for, never on when,
where or how often something else was drawn. The number of loader workers, validation, logging,
prefetching and interruptions therefore cannot change it, and there is no generator state to save.

Keys are BLAKE2b hashes of (seed, stream, position); draws are SplitMix64 outputs at a counter
(Steele, Lea & Flood 2014, https://doi.org/10.1145/2660193.2660195): integer arithmetic, the same
on every machine and with every version of NumPy and PyTorch.
"""

import hashlib
import random

import numpy as np
from numpy.typing import NDArray

from seedbed.record import STREAMS

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def key(seed: int, stream: str, *position: int) -> int:
    """Return the 64-bit key of one position in one stream.

    Args:
        seed: 0 to 2**63 - 1; 0 is a seed like any other.
        stream: one of `record.STREAMS`.
        position: what the randomness is for, such as (epoch,) or (step, shard).
    """
    if stream not in STREAMS:
        raise ValueError(f"stream: expected one of {', '.join(STREAMS)}, got {stream!r}")
    name = ":".join((str(seed), stream, *map(str, position)))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def bits(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each counter; equal counters give equal bits."""
    with np.errstate(over="ignore"):  # wrapping multiplication is the point
        x = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
        x = (x ^ (x >> np.uint64(30))) * _MULTIPLIER_1
        x = (x ^ (x >> np.uint64(27))) * _MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


def uniform(key: int, ids: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1) that belong to samples.

    Returns:
        float64 (len(ids), draws): row i is a function of (key, ids[i], draws) alone, whatever
        batch the sample is in.
    """
    counters = ids[:, None] * draws + np.arange(draws)
    mantissas: NDArray[np.float64] = (bits(key, counters) >> np.uint64(11)).astype(np.float64)
    return mantissas * 2.0**-53


def permutation(key: int, n: int) -> NDArray[np.int64]:
    """Return the numbers 0 to n - 1 in random order, as int64 (n,)."""
    return np.argsort(bits(key, np.arange(n)), kind="stable").astype(np.int64)


def key_globals(key: int, device_type: str = "cpu") -> None:
    """Key every global generator: `random`, NumPy's legacy one, torch's on CPU and accelerators.

    Called before each sample is loaded (on the CPU, in every loader process) and before each
    training step (`device_type` "cuda": every GPU; "mps": the Apple one), so that user code which
    draws from them gets randomness that depends on the sample or the step alone.
    """
    import torch

    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & 0x7FFFFFFFFFFFFFFF)
    if device_type == "cuda":
        torch.cuda.manual_seed_all(key & 0x7FFFFFFFFFFFFFFF)
    elif device_type == "mps":
        torch.mps.manual_seed(key & 0x7FFFFFFFFFFFFFFF)


def generator() -> np.random.Generator:
    """Return a NumPy `Generator` that belongs to the sample or step at hand.

    Use it instead of `np.random.default_rng()` in a data set, a transform or a model: it takes
    its seed from the legacy generator, which `key_globals` has keyed.
    """
    return np.random.default_rng(np.random.randint(0, 2**32, size=4, dtype=np.uint32))
