"""Statistics over seeds, by simulation and against exact powers."""

import math

import numpy as np
import pytest
from scipy import stats

from seedbed.sweeps import statistics


def coverage(n: int, quantile: float | None = None) -> float:
    """Return how often the interval of n standard normal values contains their mean, 0."""
    values = np.random.default_rng(n).standard_normal((2000, n))
    found = [statistics.mean_of(each) for each in values]
    if quantile is not None:
        return float(np.mean([abs(f.mean) <= quantile * f.sd / math.sqrt(n) for f in found]))
    return float(np.mean([f.interval[0] <= 0 <= f.interval[1] for f in found]))


@pytest.mark.parametrize("n", [2, 3, 10])
def test_an_interval_contains_the_true_mean_95_times_in_100(n: int) -> None:
    """Also of two seeds. Negative control: the normal quantile claims too much of three."""
    assert 0.93 <= coverage(n) <= 0.97
    assert coverage(3, quantile=1.96) < 0.85


@pytest.mark.parametrize("paired", [True, False])
def test_equal_sweeps_are_told_apart_5_times_in_100_and_different_ones_always(paired: bool) -> None:
    """By the interval of the difference, of 3 seeds a side; then of 3 standard deviations."""
    a, b = np.random.default_rng(0).standard_normal((2, 1000, 3))

    def apart(shift: float) -> float:
        found = [statistics.difference(x, y + shift, paired) for x, y in zip(a, b, strict=True)]
        return float(np.mean([not f.interval[0] <= 0 <= f.interval[1] for f in found]))

    assert apart(0.0) <= 0.07
    assert apart(30.0) == 1.0


def test_what_has_no_spread_has_no_interval() -> None:
    """One value, or a difference that is the same in each pair but for rounding."""
    assert statistics.mean_of(np.array([1.0])) == statistics.Estimate(1, 1.0)
    a = np.array([0.1, 0.2, 0.3])
    assert statistics.difference(a, a + 0.1, paired=True).interval is None
    assert statistics.difference(a, a + 0.1, paired=False).interval is not None


@pytest.mark.parametrize(("paired", "effect", "expected"), [(False, 0.5, 64), (True, 0.5, 34)])
def test_seeds_to_decide_agree_with_the_exact_power(
    paired: bool, effect: float, expected: int
) -> None:
    """The smallest n with a power of 80 %, from the noncentral t distribution."""

    def power(n: int) -> float:
        freedom, shift = (n - 1, math.sqrt(n)) if paired else (2 * n - 2, math.sqrt(n / 2))
        return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, effect * shift))

    assert statistics.seeds_to_decide(-effect, 1.0, paired) == expected
    assert power(expected - 1) < 0.8 <= power(expected)
