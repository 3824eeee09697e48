"""Randomness as a pure function of (seed, stream, position).

Nothing here lasts from batch to batch: a draw depends on its purpose, never on when,
where or how often anything else was drawn. The number of loader workers, validation,
logging, prefetching and interruptions therefore cannot change it, and there is no
generator state to save.

Keys are BLAKE2b hashes of (seed, stream, position); draws are SplitMix64 outputs at a
counter (Steele, Lea & Flood 2014, https://doi.org/10.1145/2660193.2660195): integer
arithmetic, the same on every machine and with every version of NumPy and PyTorch.
"""

import hashlib
import math
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seedbed.names import STREAMS

__all__ = [
    "Draws",
    "bits",
    "generator",
    "key",
    "permutation",
    "seed_globals",
    "uniform",
]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_seed: int | None = None  # that of torch's generator, as last seeded here
# twice the four that suffice against an adversary who can ask (Luby & Rackoff 1988)
_ROUNDS = 8
_MULTIPLIERS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def key(seed: int, stream: str, *position: int) -> int:
    """Return the 64-bit key of one position, such as (epoch,) or (step, shard), in one
    stream.

    Seeds are 0 to 2**63 - 1; 0 is a seed like any other.
    """
    if stream not in STREAMS:
        raise ValueError(
            f"stream: expected one of {', '.join(STREAMS)}, got {stream!r}"
        )
    return _hash(seed, stream, *position)


def bits(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each counter; equal keys and counters give equal
    bits."""
    with np.errstate(over="ignore"):  # wrapping multiplication is the point
        x = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA
        shifted = np.empty_like(x)  # reused, so that it stays in the CPU's cache
        x ^= np.right_shift(x, np.uint64(30), out=shifted)
        x *= _MULTIPLIERS[0]
        x ^= np.right_shift(x, np.uint64(27), out=shifted)
        x *= _MULTIPLIERS[1]
        x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


class Draws:
    """Random numbers for the samples of a batch; every call of `uniform` returns new
    ones.

    All code that draws for a batch, such as a sequence of augmentations, shares one
    `Draws`, so that their numbers are independent without a name for each. `ids`, int64
    (B,), are the samples.
    """

    def __init__(
        self, key: int, ids: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> None:
        """Start with a key's first draws, which depend on `rows`: int64 (B,), the ids
        if None.

        A sample that is repeated in an epoch has another row each time.
        """
        self.ids = ids
        self._rows = ids if rows is None else rows
        self._key = key
        self._calls = 0

    def uniform(self, draws: int) -> NDArray[np.float64]:
        """Draw numbers in [0, 1), float64 (B, draws).

        Row i is a function of the key, the sample (and how often it came before in the
        epoch), `draws` and the number of calls so far. So make the same number of calls
        for every batch.
        """
        self._calls += 1
        return uniform(_hash(self._key, self._calls), self._rows, draws)


def uniform(key: int, ids: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1) for samples, float64 (len(ids), draws).

    Row i is a function of (key, ids[i], draws) alone, not of the rest of the batch.
    """
    counters = ids[:, None] * draws + np.arange(draws)
    mantissas = (bits(_hash(key, draws), counters) >> np.uint64(11)).astype(np.float64)
    return mantissas * 2.0**-53


def permutation(key: int, n: int) -> NDArray[np.int64]:
    """Return the numbers 0 to n - 1 in random order, as int64 (n,).

    Every order is equally likely. Time and memory grow with n; see
    `part_of_permutation`.
    """
    return np.argsort(bits(key, np.arange(n)), kind="stable").astype(np.int64)


def part_of_permutation(
    key: int, n: int, positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the numbers at some positions of a random order of 0 to n - 1, int64 like
    `positions`.

    The order is another than that of `permutation`, and nothing else of it is computed:
    any part takes the same time and memory for every n, from 2**16 to 2**62. (Fewer
    numbers have too few pairs to mix: for 5, some orders are several times as likely as
    others.)

    It is a Feistel network of 8 rounds on the pairs (x, y) of x * b + y, where x < a
    and y < b and a * b is just above n. A number that leaves 0 to n - 1 is passed
    through the network again until it is back ("cycle walking": Black & Rogaway 2002,
    Ciphers with Arbitrary Finite Domains).
    """
    a = np.uint64(math.isqrt(n - 1) + 1)
    b = np.uint64(-(-n // int(a)))
    keys = [_hash(key, "round", number) for number in range(_ROUNDS)]
    numbers = positions.astype(np.uint64)
    outside = np.arange(len(numbers))  # indices of those still to be passed through
    while len(outside):
        x, y = np.divmod(numbers[outside], b)
        for even, odd in zip(keys[::2], keys[1::2], strict=True):
            x = (x + bits(even, y) % a) % a
            y = (y + bits(odd, x) % b) % b
        numbers[outside] = x * b + y
        outside = outside[numbers[outside] >= n]
    return numbers.astype(np.int64)


def seed_globals(key: int) -> None:
    """Seed the global generators of `random`, NumPy and torch, on the CPU and
    accelerators."""
    seed_cpu(key)
    if (seed_accelerators := _accelerators()) is not None:
        seed_accelerators(_words(key)[3])


def seed_cpu(key: int) -> None:
    """Seed the global generators of the CPU; called before each sample is loaded."""
    import torch

    global _seed
    for_random, for_numpy, for_torch, _ = _words(key)
    _seed = for_torch
    random.seed(for_random)
    np.random.seed(for_numpy)
    torch.default_generator.manual_seed(for_torch)


def warn_if_reseeded(caller: str, stream: str) -> None:
    """Print a warning, once, if other code has seeded torch since this module last
    did."""
    global _seed
    import torch

    if _seed not in (None, seed := torch.initial_seed()):
        _seed = seed  # what comes next is not to blame
        _warn(
            f"warning: {caller} calls torch.manual_seed: seeds.{stream} has no effect"
            " on what is drawn afterwards; remove that call"
        )


@cache
def _warn(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def restored() -> Iterator[None]:
    """Restore the state of the CPU's global generators on exit."""
    global _seed
    import torch

    seed = _seed
    of_random = random.getstate()
    of_numpy = np.random.get_state()
    of_torch = torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(of_random)
        np.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        _seed = seed


def state() -> int:
    """Return a hash of the state of the CPU's global generators."""
    import torch

    of_torch = torch.get_rng_state().numpy().tobytes()
    return hash((random.getstate(), repr(np.random.get_state()), of_torch))


def generator(key: int | None = None) -> np.random.Generator:
    """Return a NumPy generator for a key, or for the current sample or step.

    Use it instead of `np.random.default_rng()` in a data set, a transform or a model:
    without a key it is seeded from the legacy global generator, which `seed_globals`
    has seeded.
    """
    words = np.random.randint(0, 2**32, size=4, dtype=np.uint32) if key is None else key
    return np.random.default_rng(words)


def _words(key: int) -> tuple[int, int, int, int]:
    """Return independent seeds for `random`, NumPy, torch's CPU and accelerators."""
    # NumPy's and torch's MT19937 would draw the same numbers with the same seed of 32
    # bits.
    digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=24).digest()
    return struct.unpack("<QIIQ", digest)


@cache
def _accelerators() -> Callable[[int], object] | None:
    """Return the function that seeds all accelerators of this machine; None if it has
    none."""
    import torch

    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return None
    module: Any = torch.get_device_module(accelerator)
    return getattr(module, "manual_seed_all", module.manual_seed)  # type: ignore[no-any-return]


def _hash(*parts: object) -> int:
    name = ":".join(map(str, parts))
    return int.from_bytes(
        hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"
    )
