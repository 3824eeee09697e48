"""Randomness is a pure function of (seed, stream, position)."""

import hashlib
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from seedbed import loading, rng

KEYS = st.integers(0, 2**64 - 1)
SEEDS = st.integers(0, 2**63 - 1)
IDS = st.lists(st.integers(0, 2**31), min_size=1, max_size=20)
MASK = 2**64 - 1
# The same examples every time, and no limit on how long one takes on a busy machine.
property_test = settings(max_examples=100, deadline=None, derandomize=True)


def splitmix64(key: int, counter: int) -> int:
    """Return output number `counter` of SplitMix64 seeded with `key`, written from the
    paper."""
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def array(ids: list[int]) -> NDArray[np.int64]:
    return np.array(ids, dtype=np.int64)


@property_test
@given(
    SEEDS, st.sampled_from(rng.STREAMS), st.lists(st.integers(-2, 2**40), max_size=3)
)
def test_a_key_is_a_hash_of_its_arguments(
    seed: int, stream: str, position: list[int]
) -> None:
    """A key is the first 64 bits of BLAKE2b of "seed:stream:position", and nothing
    else."""
    name = f"{seed}:{stream}" + "".join(f":{p}" for p in position)
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    assert rng.key(seed, stream, *position) == int.from_bytes(digest, "little")
    with pytest.raises(ValueError, match="stream: expected one of init, order"):
        rng.key(seed, f"{stream}s", *position)  # a misspelt one is no new stream


@property_test
@given(KEYS, IDS, st.integers(1, 5))
def test_draws_are_splitmix64_at_id_times_draws(
    key: int, ids: list[int], draws: int
) -> None:
    """A draw is the upper 53 bits at counter id * draws + j, over 2**53: never 1.

    SplitMix64's key is the first 64 bits of BLAKE2b of "key:draws".
    """
    digest = hashlib.blake2b(f"{key}:{draws}".encode(), digest_size=8).digest()
    start = int.from_bytes(digest, "little")
    expected = [
        [(splitmix64(start, i * draws + j) >> 11) * 2.0**-53 for j in range(draws)]
        for i in ids
    ]
    values = rng.uniform(key, array(ids), draws)
    assert values.tolist() == expected
    assert values.dtype == np.float64


@property_test
@given(KEYS, IDS)
def test_a_row_belongs_to_its_sample(key: int, ids: list[int]) -> None:
    """Row i of each call depends on ids[i] alone: not on the batch, its order or its
    size."""
    together = rng.Draws(key, array(ids))
    alone = [rng.Draws(key, array([i])) for i in ids]
    for count in (3, 1, 3):
        rows = [draws.uniform(count)[0] for draws in alone]
        assert together.uniform(count).tolist() == np.stack(rows).tolist()


@property_test
@given(KEYS, st.integers(1, 300))
def test_an_order_is_a_permutation(key: int, n: int) -> None:
    """Every number occurs once; they are sorted by their SplitMix64 output."""
    order = rng.permutation(key, n)
    assert sorted(order.tolist()) == list(range(n))
    assert order.tolist() == sorted(range(n), key=lambda i: splitmix64(key, i))
    assert order.dtype == np.int64


@property_test
@given(KEYS)
def test_each_generator_is_seeded_with_bits_of_blake2b(key: int) -> None:
    """Their states equal those that the libraries' own functions set for these bits."""
    digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=24).digest()
    for_random, for_numpy, for_torch = (
        int.from_bytes(digest[a:b], "little") for a, b in ((0, 8), (8, 12), (12, 16))
    )
    # each keeps half of its draw
    random.gauss(0, 1), np.random.normal(), torch.randn(1)
    rng.seed_globals(key)
    assert random.getstate() == random.Random(for_random).getstate()
    expected = np.random.RandomState(for_numpy).get_state()
    assert str(np.random.get_state()) == str(expected)
    of_torch = torch.Generator().manual_seed(for_torch)
    assert torch.equal(torch.get_rng_state(), of_torch.get_state())


@pytest.mark.parametrize("name", ["manual_seed_all", "manual_seed"])
def test_all_accelerators_are_seeded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step seeds them by their module, with separate bits; a loaded sample only
    seeds the CPU.

    Apple's module has no function that seeds all devices.
    """
    seeds: list[int] = []
    module = SimpleNamespace(**{"manual_seed": None, name: seeds.append})
    found = torch.device("xpu")
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: found
    )
    monkeypatch.setattr(torch, "get_device_module", lambda _device: module)
    # not the cached one
    monkeypatch.setattr(rng, "_accelerators", rng._accelerators.__wrapped__)
    for step in (1, 2, 1):
        loading.seed_step(0, step)
    rng.seed_cpu(3)
    assert seeds[0] == seeds[2] != seeds[1]
    assert len(seeds) == 3
    key = rng.key(0, "dropout", 1, 0)
    assert seeds[0] not in rng._words(key)[:3]


def test_a_generator_belongs_to_the_place() -> None:
    """A user's NumPy `Generator` depends on the key; a second one differs from the
    first."""

    def numbers(key: int) -> list[float]:
        rng.seed_globals(key)
        return [float(rng.generator().random()), float(rng.generator().random())]

    assert numbers(1) == numbers(1) != numbers(2)
    assert numbers(1)[0] != numbers(1)[1]
