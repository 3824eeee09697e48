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
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seedbed.names import STREAMS

if TYPE_CHECKING:
    from torch import Tensor

Generator = np.random.Generator

_MT_WORDS = 624  # of the state of MT19937
_UINT32 = np.dtype("<u4")
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)


def key(seed: int, stream: str, *position: int) -> int:
    """Return the 64-bit key of one position in one stream.

    Args:
        seed: 0 to 2**63 - 1; 0 is a seed like any other.
        stream: one of `names.STREAMS`.
        position: what the randomness is for, such as (epoch,) or (step, shard).
    """
    if stream not in STREAMS:
        raise ValueError(f"stream: expected one of {', '.join(STREAMS)}, got {stream!r}")
    return _hash(seed, stream, *position)


def bits(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each counter; equal counters give equal bits."""
    with np.errstate(over="ignore"):  # wrapping multiplication is the point
        x = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
        x = (x ^ (x >> np.uint64(30))) * _MULTIPLIER_1
        x = (x ^ (x >> np.uint64(27))) * _MULTIPLIER_2
    return x ^ (x >> np.uint64(31))


class Draws:
    """Random numbers for the samples of a batch: every call of `uniform` gives new ones.

    What draws for a batch, such as one augmentation after another, shares one `Draws`; their
    numbers are then independent without anybody naming them.

    Attributes:
        ids: int64 (B,), the samples.
    """

    def __init__(
        self, key: int, ids: NDArray[np.int64], rows: NDArray[np.int64] | None = None
    ) -> None:
        """Begin with the first draws that belong to a key; two with one key give the same.

        Args:
            rows: int64 (B,), what the draws of each sample are a function of; the ids if None. A
                sample that comes several times has a number of its own each time.
        """
        self.ids = ids
        self._rows = ids if rows is None else rows
        self._key = key
        self._calls = 0

    def __repr__(self) -> str:
        return f"Draws(key={self._key}, calls={self._calls})"

    def uniform(self, draws: int) -> NDArray[np.float64]:
        """Draw numbers in [0, 1).

        Returns:
            float64 (B, draws): row i is a function of the key, the sample (and how often it came
            before in the epoch), draws and how often this was called before. So call it equally
            often for every batch, whatever is in it.
        """
        self._calls += 1
        return uniform(_hash(self._key, self._calls), self._rows, draws)


def uniform(key: int, ids: NDArray[np.int64], draws: int) -> NDArray[np.float64]:
    """Draw numbers in [0, 1) that belong to samples.

    Equal arguments give equal numbers: what draws more than once needs a key for each time, or
    `Draws`.

    Returns:
        float64 (len(ids), draws): row i is a function of (key, ids[i], draws) alone, whatever
        batch the sample is in. Another number of draws gives other numbers.
    """
    counters = ids[:, None] * draws + np.arange(draws)
    mantissas = (bits(_hash(key, draws), counters) >> np.uint64(11)).astype(np.float64)
    return mantissas * 2.0**-53


def permutation(key: int, n: int) -> NDArray[np.int64]:
    """Return the numbers 0 to n - 1 in random order, as int64 (n,)."""
    return np.argsort(bits(key, np.arange(n)), kind="stable").astype(np.int64)


def seed_globals(key: int, device_type: str = "cpu") -> None:
    """Seed every global generator: `random`, NumPy's legacy one, torch's on CPU and accelerators.

    Called before each sample is loaded (on the CPU, in every loader process) and before each
    training step (`device_type` "cuda": every GPU; "mps": the Apple one), so that user code which
    draws from them gets randomness that depends on the sample or the step alone. Each generator
    has bits of its own, 64 or more of them, so that their draws are independent of each other.
    """
    import torch

    # NumPy's and torch's CPU generators are both MT19937: equal seeds would give equal draws.
    material = hashlib.shake_128(key.to_bytes(8, "little")).digest(48 + 4 * _MT_WORDS)
    random.seed(int.from_bytes(material[:16], "little"))
    np.random.seed(np.frombuffer(material, _UINT32, 4, 16))
    # `manual_seed` would take 32 bits on the CPU, so all of the state is set.
    state, seed, words = _torch_state()
    seed[0] = int.from_bytes(material[32:40], "little")
    words[:] = np.frombuffer(material, _UINT32, _MT_WORDS, 48)
    torch.default_generator.set_state(state)
    if device_type == "cuda":
        torch.cuda.manual_seed_all(int.from_bytes(material[40:48], "little"))
    elif device_type == "mps":
        torch.mps.manual_seed(int.from_bytes(material[40:48], "little"))


@lru_cache(maxsize=1)
def _torch_state() -> tuple["Tensor", NDArray[np.uint64], NDArray[np.uint64]]:
    """Return a state of torch's CPU generator that was just seeded, to be filled.

    Returns:
        uint8 (bytes,) for `set_state`; views of it: the seed, (1,), and MT19937's words, (624,).

    Raises:
        RuntimeError: PyTorch keeps its state in an order that is not known here.
    """
    import torch

    seed = 0x5EEDBED
    state = torch.Generator("cpu").manual_seed(seed).get_state()
    numbers = state.numpy().view(np.uint64)
    control = np.random.RandomState(np.random.MT19937(0))  # without the system's entropy
    control.seed(seed)
    words = control.get_state(legacy=False)["state"]["key"]
    starts = [i for i in range(len(numbers)) if np.array_equal(numbers[i:][:_MT_WORDS], words)]
    if len(starts) != 1 or numbers[0] != seed:
        raise RuntimeError(f"torch {torch.__version__}: its generator's state has another order")
    return state, numbers[:1], numbers[starts[0] :][:_MT_WORDS]


def generator(key: int | None = None) -> Generator:
    """Return a NumPy `Generator` that belongs to a key, or to the sample or step at hand.

    Use it instead of `np.random.default_rng()` in a data set, a transform or a model: without a
    key it takes its seed from the legacy generator, which `seed_globals` has seeded.
    """
    if key is not None:
        return np.random.default_rng(key)
    return np.random.default_rng(np.random.randint(0, 2**32, size=4, dtype=np.uint32))


def _hash(*parts: object) -> int:
    name = ":".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
