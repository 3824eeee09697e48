"""Randomness as a pure function of (seed, stream, position).

Nothing here remembers what was drawn before: a draw depends on *what* it is for, never on when,
where or how often something else was drawn. The number of loader workers, validation, logging,
prefetching and interruptions therefore cannot change it, and there is no generator state to save.

Keys are BLAKE2b hashes of (seed, stream, position); draws are SplitMix64 outputs at a counter
(Steele, Lea & Flood 2014, https://doi.org/10.1145/2660193.2660195): integer arithmetic, the same
on every machine and with every version of NumPy and PyTorch.
"""

import ctypes
import hashlib
import random
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import InputError
from seedbed.names import STREAMS

if TYPE_CHECKING:
    from torch import Tensor

Generator = np.random.Generator
_Words = NDArray[np.unsignedinteger]

_MT_WORDS = 624  # of the state of MT19937
_AT_ONCE = 8  # samples whose seeds are made together: 40 KB stay in a processor's cache
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


def bits(key: int | NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each counter; equal keys and counters give equal bits.

    Args:
        key: one for all counters, or an array of keys that broadcasts with them.
    """
    with np.errstate(over="ignore"):  # wrapping multiplication is the point
        x = np.uint64(key) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN_GAMMA
        shifted = np.empty_like(x)  # one for all, which stays in a processor's cache
        x ^= np.right_shift(x, np.uint64(30), out=shifted)
        x *= _MULTIPLIER_1
        x ^= np.right_shift(x, np.uint64(27), out=shifted)
        x *= _MULTIPLIER_2
        x ^= np.right_shift(x, np.uint64(31), out=shifted)
    return x


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

    Called before each training step (`device_type` "cuda": every GPU; "mps": the Apple one), so
    that user code which draws from them gets randomness that depends on the step alone. Each
    generator has bits of its own, 64 or more of them, so that their draws are independent.

    Raises:
        InputError: NumPy was given another generator.
        RuntimeError: NumPy or PyTorch keeps its state in an order that is not known here.
    """
    import torch

    # NumPy's and torch's CPU generators are both MT19937: equal seeds would give equal draws.
    material = hashlib.shake_128(key.to_bytes(8, "little")).digest(48 + 8 * _MT_WORDS)
    numbers = np.frombuffer(material, "<u8", 6)
    words = np.frombuffer(material, "<u4", offset=48).reshape(2, _MT_WORDS)
    _seed_cpu(int.from_bytes(material[:32], "little"), words[1], int(numbers[4]), words[0])
    if device_type == "cuda":
        torch.cuda.manual_seed_all(int(numbers[5]))
    elif device_type == "mps":
        torch.mps.manual_seed(int(numbers[5]))


def seed_globals_in_turn(key: int, rows: NDArray[np.int64]) -> Iterator[None]:
    """Seed the CPU's global generators once for each row, when the next turn is asked for.

    Called with the samples of a batch, in the process that loads them. The seeds of several rows
    are made together, which takes less time than `seed_globals` for each.

    Args:
        rows: int64 (B,); what is drawn in a turn is a function of (key, row), whatever was drawn
            before and whichever rows come beside it.
    """
    for start in range(0, len(rows), _AT_ONCE):
        keys = bits(key, rows[start : start + _AT_ONCE])
        numbers = bits(keys[:, None], np.arange(_MT_WORDS + 3))
        seeds, states = numbers[:, _MT_WORDS:].tolist(), numbers[:, :_MT_WORDS]
        low, high = states & np.uint64(0xFFFFFFFF), states >> np.uint64(32)
        for (first, second, third), for_torch, for_numpy in zip(seeds, low, high, strict=True):
            _seed_cpu(first | second << 64, for_numpy, third, for_torch)
            yield


def _seed_cpu(seed: int, for_numpy: _Words, torch_seed: int, for_torch: _Words) -> None:
    """Seed `random`, NumPy and torch; of the latter two, all words of the state are given."""
    import torch

    random.seed(seed)
    # NumPy documents these two; its types leave them out.
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    words, position = _numpy_state(generator)
    words[:], position[0] = for_numpy, _MT_WORDS  # of which all are used up, as after a seeding
    # Setting it, too, forgets the second number of a pair of normals.
    np.random.set_bit_generator(generator)  # type: ignore[attr-defined]
    # `manual_seed` would take 32 bits on the CPU, so all of the state is set.
    state, seeds, words_of_torch = _torch_state()
    seeds[0], words_of_torch[:] = torch_seed, for_torch
    torch.default_generator.set_state(state)


@lru_cache(maxsize=1)
def _numpy_state(generator: np.random.BitGenerator) -> tuple[_Words, _Words]:
    """Return views of the state of NumPy's generator; its `seed` and `set_state` are slow.

    Returns:
        MT19937's words, (624,), and how many of them are used up, (1,).
    """
    name = type(generator).__name__
    if name != "MT19937":
        raise InputError(
            f"np.random: expected its own generator, MT19937, got {name}; leave out "
            "set_bit_generator, and use seedbed.rng.generator for another one"
        )
    address = generator.ctypes.state_address
    numbers = np.ctypeslib.as_array((ctypes.c_uint32 * (_MT_WORDS + 1)).from_address(address))
    known = generator.state["state"]
    if numbers.tolist() != [*known["key"], known["pos"]]:
        raise RuntimeError(f"numpy {np.__version__}: its generator's state has another order")
    return numbers[:_MT_WORDS], numbers[_MT_WORDS:]


@lru_cache(maxsize=1)
def _torch_state() -> tuple["Tensor", _Words, _Words]:
    """Return a state of torch's CPU generator that was just seeded, to be filled.

    Returns:
        uint8 (bytes,) for `set_state`; views of it: the seed, (1,), and MT19937's words, (624,).
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
