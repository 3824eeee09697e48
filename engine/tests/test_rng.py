"""Randomness is a pure function of (seed, stream, position)."""

import hashlib
import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from seedbed import rng

KEYS = st.integers(0, 2**64 - 1)
SEEDS = st.integers(0, 2**63 - 1)
IDS = st.lists(st.integers(0, 2**31), min_size=1, max_size=20)
MASK = 2**64 - 1
# The same examples every time, and no limit on how long one takes on a busy machine.
property_test = settings(max_examples=50, deadline=None, derandomize=True)


def splitmix64(key: int, counter: int) -> int:
    """Return output number `counter` of SplitMix64 seeded with `key`, written from the paper."""
    z = (key + (counter + 1) * 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def array(ids: list[int]) -> NDArray[np.int64]:
    return np.array(ids, dtype=np.int64)


def drawn() -> tuple[float, float, float]:
    """Draw from every global generator on the CPU."""
    return random.random(), float(np.random.random()), float(torch.rand(()))


class TestKey:
    @property_test
    @given(SEEDS, st.sampled_from(rng.STREAMS), st.lists(st.integers(-2, 2**40), max_size=3))
    def test_is_a_hash_of_its_arguments(self, seed: int, stream: str, position: list[int]) -> None:
        """A key is the first 64 bits of BLAKE2b of "seed:stream:position", and nothing else."""
        name = f"{seed}:{stream}" + "".join(f":{p}" for p in position)
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        assert rng.key(seed, stream, *position) == int.from_bytes(digest, "little")

    def test_goldens(self) -> None:
        """Keys of today are keys of tomorrow: records depend on them."""
        assert rng.key(0, "init") == 0x029D6DC191A5A567
        assert rng.key(0, "order", 3) == 0xBC56B77112242599
        assert rng.key(2**63 - 1, "dropout", 7, 1) == 0x45CF90049E741255

    def test_no_two_places_share_a_key(self) -> None:
        """Seed, stream and every part of the position count, and do not run into each other."""
        places = [
            (seed, stream, *position)
            for seed in (0, 1, 11, 111)
            for stream in rng.STREAMS
            for position in ((), (0,), (1,), (11,), (0, 0), (1, 1), (1, 11), (11, 1), (1, 0, 1))
        ]
        keys = {rng.key(place[0], str(place[1]), *map(int, place[2:])) for place in places}
        assert len(keys) == len(places)

    def test_seed_0_is_a_seed(self) -> None:
        """0 is neither "no seed" nor any other seed."""
        assert rng.key(0, "init") == rng.key(0, "init") != rng.key(1, "init")

    def test_an_unknown_stream_is_refused(self) -> None:
        """A stream that is misspelt is an error, not a new stream."""
        with pytest.raises(ValueError, match="stream: expected one of init, order"):
            rng.key(0, "orders")


class TestBits:
    @property_test
    @given(KEYS, st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
    def test_is_splitmix64(self, key: int, counters: list[int]) -> None:
        """Bits are those of SplitMix64 at a counter, as an independent implementation has them."""
        expected = [splitmix64(key, counter) for counter in counters]
        assert rng.bits(key, array(counters)).tolist() == expected

    def test_goldens(self) -> None:
        """SplitMix64 seeded with 1234567 gives the numbers that its reference code prints."""
        assert rng.bits(1234567, np.arange(5)).tolist() == [
            6457827717110365317,
            3203168211198807973,
            9817491932198370423,
            4593380528125082431,
            16408922859458223821,
        ]


class TestUniform:
    @property_test
    @given(KEYS, IDS, st.integers(1, 5))
    def test_a_row_belongs_to_its_sample(self, key: int, ids: list[int], draws: int) -> None:
        """Row i depends on ids[i] alone: not on the batch, its order or its size."""
        together = rng.uniform(key, array(ids), draws)
        alone = [rng.uniform(key, array([i]), draws)[0] for i in ids]
        assert together.tolist() == np.stack(alone).tolist()
        assert rng.uniform(key, array(ids[::-1]), draws).tolist() == together[::-1].tolist()

    @property_test
    @given(KEYS, IDS, st.integers(1, 5))
    def test_is_splitmix64_at_id_times_draws(self, key: int, ids: list[int], draws: int) -> None:
        """A draw is the upper 53 bits at counter id * draws + j, over 2**53: never 1.

        SplitMix64's key is the first 64 bits of BLAKE2b of "key:draws".
        """
        digest = hashlib.blake2b(f"{key}:{draws}".encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "little")
        expected = [
            [(splitmix64(start, i * draws + j) >> 11) * 2.0**-53 for j in range(draws)] for i in ids
        ]
        values = rng.uniform(key, array(ids), draws)
        assert values.tolist() == expected
        assert values.shape == (len(ids), draws)
        assert values.dtype == np.float64
        assert ((values >= 0) & (values < 1)).all()

    @property_test
    @given(KEYS, KEYS)
    def test_other_keys_give_other_draws(self, a: int, b: int) -> None:
        """Twin: draws can differ, between keys and between samples."""
        ids = np.arange(4)
        values = rng.uniform(a, ids, 2)
        assert (a == b) == (values.tolist() == rng.uniform(b, ids, 2).tolist())
        assert len(set(values.ravel().tolist())) == values.size

    @pytest.mark.parametrize("stream", rng.STREAMS)
    def test_draws_are_uniform(self, stream: str) -> None:
        """Mean, variance and 64 bins of 2**18 draws lie within 5 standard errors of a uniform's."""
        n = 2**18
        values = rng.uniform(rng.key(0, stream, 1), np.arange(n // 4), 4).ravel()
        assert abs(values.mean() - 1 / 2) < 5 * (1 / 12 / n) ** 0.5
        assert abs(values.var() - 1 / 12) < 5 * (1 / 180 / n) ** 0.5
        counts = np.bincount((values * 64).astype(int), minlength=64)
        chi_squared = ((counts - n / 64) ** 2 / (n / 64)).sum()
        assert abs(chi_squared - 63) < 5 * (2 * 63) ** 0.5

    def test_streams_and_positions_are_not_correlated(self) -> None:
        """Draws for the same samples in other streams, seeds and epochs have no correlation."""
        n = 2**16
        places = [(0, stream, 1) for stream in rng.STREAMS] + [(0, "augment", 2), (1, "augment", 1)]
        keys = [rng.key(seed, stream, epoch) for seed, stream, epoch in places]
        columns = np.stack([rng.uniform(key, np.arange(n), 1)[:, 0] for key in keys])
        correlations = np.corrcoef(columns) - np.eye(len(keys))
        assert abs(correlations).max() < 5 / n**0.5

    def test_other_numbers_of_draws_share_none(self) -> None:
        """One sample's draws are no other sample's draws of another number."""
        drawn = [rng.uniform(1, np.arange(100), draws).ravel() for draws in range(1, 6)]
        numbers = np.concatenate(drawn)
        assert len(np.unique(numbers)) == len(numbers)


class TestDraws:
    def test_each_call_gives_numbers_of_its_own(self) -> None:
        """Two that draw one after another share no number and have no correlation."""
        n = 2**14
        draws = rng.Draws(rng.key(0, "augment", 0), np.arange(n))
        columns = [draws.uniform(count) for count in (3, 3, 1, 2, 3)]
        table = np.column_stack(columns)
        assert len(np.unique(table)) == table.size
        correlations = np.corrcoef(table.T) - np.eye(table.shape[1])
        assert abs(correlations).max() < 5 / n**0.5

    def test_two_with_one_key_give_the_same(self) -> None:
        """Negative control: numbers are equal where they are drawn from two objects."""
        first, second = (rng.Draws(1, np.arange(9)) for _ in range(2))
        assert np.array_equal(first.uniform(3), second.uniform(3))

    @property_test
    @given(KEYS, IDS)
    def test_a_row_belongs_to_its_sample(self, key: int, ids: list[int]) -> None:
        """Row i of each call depends on ids[i] alone: not on the batch, its order or its size."""
        together = rng.Draws(key, array(ids))
        alone = [rng.Draws(key, array([i])) for i in ids]
        for count in (3, 1, 3):
            rows = [draws.uniform(count)[0] for draws in alone]
            assert together.uniform(count).tolist() == np.stack(rows).tolist()

    def test_says_which_draws_come_next(self) -> None:
        """Explanations tell two by what they print: key and position."""
        first, second = rng.Draws(1, np.arange(9)), rng.Draws(1, np.arange(9))
        assert repr(first) == repr(second) != repr(rng.Draws(2, np.arange(9)))
        first.uniform(1)
        assert repr(first) != repr(second)


class TestPermutation:
    @property_test
    @given(KEYS, st.integers(1, 300))
    def test_is_a_permutation(self, key: int, n: int) -> None:
        """Every number comes once, in the order of its hash."""
        order = rng.permutation(key, n)
        assert sorted(order.tolist()) == list(range(n))
        assert order.tolist() == sorted(range(n), key=lambda i: splitmix64(key, i))
        assert order.dtype == np.int64

    def test_other_keys_give_other_orders(self) -> None:
        """Twin: of 50 keys no two give the same order of 20."""
        orders = {tuple(rng.permutation(rng.key(0, "order", e), 20).tolist()) for e in range(50)}
        assert len(orders) == 50

    def test_every_place_is_equally_likely(self) -> None:
        """Over 6,000 keys each of 6 numbers stands in each of 6 places about 1,000 times."""
        places = np.stack([rng.permutation(rng.key(0, "order", e), 6) for e in range(6000)])
        counts = np.stack([np.bincount(column, minlength=6) for column in places.T])
        assert abs(counts - 1000).max() < 5 * (6000 * 1 / 6 * 5 / 6) ** 0.5


SEEDINGS = {"a step": rng.seed_globals, "a sample": rng.seed_cpu}
each_seeding = pytest.mark.parametrize("seed", SEEDINGS.values(), ids=SEEDINGS)
Seeding = Callable[[int], None]


@each_seeding
class TestSeedingGlobals:
    @property_test
    @given(KEYS)
    def test_draws_depend_on_the_key_alone(self, seed: Seeding, key: int) -> None:
        """What was drawn before, and how much, does not reach past a seeding."""
        seed(key)
        first = drawn()
        random.gauss(0, 1), np.random.normal(), torch.randn(5)
        seed(key)
        assert drawn() == first

    def test_another_key_changes_every_generator(self, seed: Seeding) -> None:
        """Twin: each of the three generators takes part."""
        seed(1)
        first = drawn()
        seed(2)
        assert all(a != b for a, b in zip(first, drawn(), strict=True))

    def test_without_seeding_draws_depend_on_history(self, seed: Seeding) -> None:
        """Twin: the generators do have a state that seeding replaces."""
        seed(1)
        first = drawn()
        assert drawn() != first

    def test_a_pending_normal_is_forgotten(self, seed: Seeding) -> None:
        """Generators keep a second normal number back; seeding drops it."""

        def normals() -> list[float]:
            wide = torch.randn(1, dtype=torch.float64)
            return [random.gauss(0, 1), np.random.normal(), float(torch.randn(1)), float(wide)]

        seed(7)
        first = normals()
        seed(7)
        assert normals() == first

    @pytest.mark.parametrize("bit", range(64))
    def test_every_bit_of_the_key_reaches_every_generator(self, seed: Seeding, bit: int) -> None:
        """Keys that differ in one bit, whichever it is, give all three generators other draws."""
        key = rng.key(0, "augment", 0)
        seed(key)
        first, torch_seed = drawn(), torch.initial_seed()
        seed(key ^ (1 << bit))
        assert all(a != b for a, b in zip(first, drawn(), strict=True))
        assert torch.initial_seed() != torch_seed


class TestWhatGeneratorsAreSeededWith:
    @property_test
    @given(KEYS)
    def test_each_has_bits_of_blake2b_of_its_own(self, key: int) -> None:
        """As an independent implementation has them, by the libraries' own functions."""
        digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=24).digest()
        for_random, for_numpy, for_torch = (
            int.from_bytes(digest[a:b], "little") for a, b in ((0, 8), (8, 12), (12, 16))
        )
        rng.seed_globals(key)
        assert random.getstate() == random.Random(for_random).getstate()
        expected = np.random.RandomState(for_numpy).random(5)
        assert np.random.random(5).tolist() == expected.tolist()
        assert torch.initial_seed() == for_torch

    def test_no_two_samples_share_what_they_draw(self) -> None:
        """Of 300,000 samples no two have one pair of seeds for NumPy and torch.

        Negative control: 32 bits alone would not do.
        """
        keys = [rng.key(0, "augment", 0, epoch, i) for epoch in range(5) for i in range(60_000)]
        words = np.array([rng._words(key)[1:3] for key in keys], dtype=np.uint64)
        pairs = words[:, 0] << np.uint64(32) | words[:, 1]
        assert len(np.unique(pairs)) == len(keys) > len(np.unique(words[:, 0]))

    def test_all_accelerators_are_seeded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wherever the CPU is, with bits of their own; a sample in a loader has the CPU's alone."""
        seeds: list[int] = []
        monkeypatch.setattr(rng, "_accelerators", lambda: seeds.append)
        rng.seed_globals(1)
        rng.seed_globals(2)
        rng.seed_cpu(3)
        assert len(set(seeds)) == 2
        assert not {*seeds} & {*rng._words(1)[:3], *rng._words(2)[:3]}


GENERATORS = ("random", "numpy", "torch")


def below(n: int) -> dict[str, Callable[[], Any]]:
    return {
        "random": lambda: random.randrange(n),
        "numpy": lambda: np.random.randint(n),
        "torch": lambda: torch.randint(n, ()),
    }


def permutation_of_4() -> list[int]:
    order = list(range(4))
    random.shuffle(order)
    return order


def rank(order: Any) -> int:
    """Number the orders of four."""
    return sum(int(place) * 4**i for i, place in enumerate(order))


# How each generator makes its first draw of a kind, as an integer below 256.
KINDS: dict[str, dict[str, Callable[[], Any]]] = {
    **{f"below {n}": below(n) for n in (2, 3, 8, 256)},
    "sixteenths": {
        "random": lambda: random.random() * 16,
        "numpy": lambda: np.random.random() * 16,
        "torch": lambda: torch.rand(()) * 16,
    },
    "order of 4": {
        "random": lambda: rank(permutation_of_4()),
        "numpy": lambda: rank(np.random.permutation(4)),
        "torch": lambda: rank(torch.randperm(4).tolist()),
    },
}


def first_draws(seed: Seeding, samples: int) -> dict[tuple[str, str], NDArray[np.int64]]:
    """Return each generator's first draw of each kind in each sample."""
    keys = [rng.key(0, "augment", 0, 0, i) for i in range(samples)]

    def draw(key: int, kind: dict[str, Callable[[], Any]]) -> list[int]:
        seed(key)
        return [int(kind[generator]()) for generator in GENERATORS]

    found = {}
    for name, kind in KINDS.items():
        table = np.array([draw(key, kind) for key in keys])
        found |= {(g, name): table[:, i] for i, g in enumerate(GENERATORS)}
    return found


def information(a: NDArray[np.int64], b: NDArray[np.int64]) -> float:
    """Return the mutual information of two columns of integers below 256, in bits."""

    def entropy(values: NDArray[np.int64]) -> float:
        counts = np.bincount(values)
        shares = counts[counts > 0] / len(values)
        return float(-(shares * np.log2(shares)).sum())

    return entropy(a) + entropy(b) - entropy(256 * a + b)


def dependent(draws: dict[tuple[str, str], NDArray[np.int64]]) -> set[tuple[str, str]]:
    """Return the pairs of generators whose first draws tell something of each other.

    That is more than 8 standard deviations above what they tell when one of them is shuffled.
    """
    shuffler = np.random.default_rng(0)
    found = set()
    for (one, a), (other, b) in itertools.combinations(draws.items(), 2):
        if one[0] == other[0]:
            continue
        by_chance = [information(a, shuffler.permutation(b)) for _ in range(10)]
        if information(a, b) > np.mean(by_chance) + 8 * np.std(by_chance):
            found.add((min(one[0], other[0]), max(one[0], other[0])))
    return found


def seed_alike(key: int) -> None:
    """Give every generator the same seed, as is the custom."""
    random.seed(key)
    np.random.seed(key & 0xFFFFFFFF)
    torch.default_generator.manual_seed(key & 0xFFFFFFFF)


class TestIndependence:
    @each_seeding
    def test_no_generator_tells_anything_of_another(self, seed: Seeding) -> None:
        """Over 20,000 samples the first draws of any two generators are independent."""
        assert dependent(first_draws(seed, 20_000)) == set()

    def test_generators_that_are_seeded_alike_are_found(self) -> None:
        """Negative control: NumPy and torch turn one seed into one stream of bits."""
        assert dependent(first_draws(seed_alike, 2_000)) == {("numpy", "torch")}


class TestGenerator:
    def test_belongs_to_the_place(self) -> None:
        """A NumPy `Generator` for users depends on the key, and each one in a place is another."""

        def numbers(key: int) -> list[float]:
            rng.seed_globals(key)
            return [float(rng.generator().random()), float(rng.generator().random())]

        assert numbers(1) == numbers(1) != numbers(2)
        assert numbers(1)[0] != numbers(1)[1]
