"""Orders of any length: each is a permutation, random, and computed where it is
needed."""

import itertools
import math
import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from seedbed import rng
from seedbed.pipeline import positions
from seedbed.pipeline.positions import EvaluationPositions, Ids, Shuffled
from tests.test_rng import property_test

KEYS = st.integers(0, 2**64 - 1)
# Chance of a false alarm in all tests of randomness here together, divided among their
# statistics. The keys are fixed, so a test that passes once passes always.
FALSE_ALARM = 0.01
Order = Callable[[int, int], Ids]  # of a key and n


def in_parts(key: int, n: int) -> Ids:
    return rng.part_of_permutation(key, n, np.arange(n))


def shifted(key: int, n: int) -> Ids:
    """Return the order of a linear congruence: each number once, but no shuffle."""
    step = next(number for number in range(n // 3, n) if math.gcd(number, n) == 1)
    return (np.arange(n) * step + key % n) % n


def rotated(key: int, n: int) -> Ids:
    """Return the samples in their own order, from a random one on."""
    return np.roll(np.arange(n), key % n)


@pytest.mark.parametrize("power", range(1, 17))
def test_every_number_occurs_once_around_powers_of_two(power: int) -> None:
    """The order is a bijection for 2**k - 1, 2**k and 2**k + 1 numbers."""
    for n in (2**power - 1, 2**power, 2**power + 1):
        assert np.array_equal(np.sort(in_parts(power, n)), np.arange(n)), n


@property_test
@given(KEYS, st.integers(1, 3000))
def test_every_number_occurs_once(key: int, n: int) -> None:
    order = in_parts(key, n)
    assert np.array_equal(np.sort(order), np.arange(n))
    assert order.dtype == np.int64


@property_test
@given(KEYS, st.integers(2, 2**62), st.data())
def test_a_part_does_not_depend_on_the_rest(
    key: int, n: int, data: st.DataObject
) -> None:
    """Each number is a function of key, n and its position; all are in range and
    different."""
    chosen = data.draw(st.sets(st.integers(0, n - 1), min_size=1, max_size=20))
    asked = np.array(sorted(chosen))
    together = rng.part_of_permutation(key, n, asked)
    alone = [
        rng.part_of_permutation(key, n, asked[i : i + 1])[0] for i in range(len(asked))
    ]
    assert together.tolist() == alone
    assert len(set(alone)) == len(asked)
    assert 0 <= min(alone) <= max(alone) < n


@pytest.mark.parametrize("n", range(2, 7))
def test_all_orders_of_few_samples_are_equally_likely(n: int) -> None:
    """For up to 6 samples, an epoch's order is each of the n! permutations equally
    often."""
    draws = 200 * math.factorial(n)
    counts = Counter(
        tuple(positions.order_of_epoch(0, epoch, n, 0, n).tolist())
        for epoch in range(draws)
    )
    assert counts.keys() == set(itertools.permutations(range(n)))
    assert stats.chisquare(list(counts.values())).pvalue > FALSE_ALARM / 5


def chance_of_cells(table: NDArray[np.int64]) -> float:
    return float(stats.chisquare(table.reshape(-1)).pvalue)


def position_against_number(order: Order, n: int) -> float:
    """Count which sixteenth of the numbers stands in which sixteenth of the order."""
    table = np.zeros((16, 16), np.int64)
    rows = np.arange(n) * 16 // n
    for key in range(40):
        np.add.at(table, (rows, order(key, n) * 16 // n), 1)
    # Rows and columns have fixed sums, which leaves 15 * 15 degrees of freedom. Counts
    # may be too even as well: those of a linear congruence are.
    expected = table.mean()
    statistic = ((table - expected) ** 2 / expected).sum() * n / (n - 1)
    return float(2 * min(stats.chi2.sf(statistic, 225), stats.chi2.cdf(statistic, 225)))


def neighbours(order: Order, n: int) -> float:
    """Count the differences of neighbours, in 32 classes of equal size modulo n."""
    counts = np.zeros(32, np.int64)
    for key in range(40):
        differences = np.diff(order(key, n)) % n
        counts += np.bincount(differences * 32 // n, minlength=32)
    return chance_of_cells(counts)


def epochs(order: Order, n: int) -> float:
    """Correlate the positions of samples in consecutive epochs."""
    correlations = []
    for key in range(40):
        places = [
            np.argsort(order(rng.key(key, "order", epoch), n)) for epoch in (0, 1)
        ]
        correlations.append(np.corrcoef(*places)[0, 1] * math.sqrt(n - 1))
    return float(stats.kstest(correlations, "norm").pvalue)


STATISTICS = [position_against_number, neighbours, epochs]
SIZES = [2**13 - 1, 2**13, 10_007, 2**16 + 1]


@pytest.mark.parametrize("statistic", STATISTICS)
def test_orders_are_random(statistic: Callable[[Order, int], float]) -> None:
    """Neither positions, neighbours nor consecutive epochs tell a number's position."""
    chances = [statistic(in_parts, n) for n in SIZES]
    assert min(chances) > FALSE_ALARM / len(STATISTICS) / len(SIZES)


@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("order", [shifted, rotated])
def test_orders_that_are_not_random_are_found(
    statistic: Callable[[Order, int], float], order: Order
) -> None:
    """Negative control: shuffles that do not shuffle fail."""
    chances = [statistic(order, n) for n in SIZES[:2]]
    assert min(chances) < FALSE_ALARM / len(STATISTICS) / len(SIZES)


@pytest.mark.parametrize("n", [1000, positions.SORTED_SAMPLES + 3])
def test_batches_are_parts_of_one_order(n: int) -> None:
    """Whatever the batch size, and across blocks, an epoch is one order; resumed
    anywhere."""
    start = n // 2
    stop = n // 2 + 400
    order = positions.order_of_epoch(7, 3, n, start, stop)
    batches = Shuffled(n, 100, 7)
    found = [
        batches.position(3, index).ids for index in range(start // 100, stop // 100)
    ]
    expected = positions.order_of_epoch(7, 3, n, start // 100 * 100, stop // 100 * 100)
    assert np.concatenate(found).tolist() == expected.tolist()
    assert len({*order.tolist()}) == len(order)
    one_by_one = [
        positions.order_of_epoch(7, 3, n, at, at + 1)[0] for at in range(start, stop)
    ]
    assert one_by_one == order.tolist()


def test_a_block_border_is_no_border() -> None:
    """A batch that reaches from one block of a long order into the next has both
    parts."""
    n = positions.SORTED_SAMPLES * 1000
    block = positions._BLOCK
    across = positions.order_of_epoch(1, 0, n, block - 3, block + 3)
    key = rng.key(1, "order", 0)
    expected = rng.part_of_permutation(key, n, np.arange(block - 3, block + 3))
    assert across.tolist() == expected.tolist()


@pytest.mark.parametrize("n", [10**6, 10**9, 10**12])
def test_memory_does_not_grow_with_the_data(n: int) -> None:
    """A batch in the middle of an epoch takes less than 100 MB, for any number of
    samples."""
    tracemalloc.start()
    try:
        order = Shuffled(n, 64, 0)
        order.position(5, order.steps_per_epoch // 2)
        held_out = EvaluationPositions(n, 500)
        assert held_out[len(held_out) - 1].ids[-1] == n - 1
        assert tracemalloc.get_traced_memory()[1] < 100 * 10**6
    finally:
        tracemalloc.stop()


@property_test
@given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 12), st.integers(0, 12))
def test_evaluations_read_every_sample_once(
    n: int, size: int, start: int, stop: int
) -> None:
    """In their order; slices, also of slices, are those of a list."""
    batches = EvaluationPositions(n, size)
    ids = [position.ids.tolist() for position in batches]
    assert list(itertools.chain(*ids)) == list(range(n))
    assert [position.ids.tolist() for position in batches[start:stop]] == ids[
        start:stop
    ]
    assert [p.ids.tolist() for p in batches[start:][:stop]] == ids[start:][:stop]
