"""Statistics over seeds, by hand, by simulation and against exact powers."""

import math

import numpy as np
import pytest
from scipy import stats

from seedbed.sweeps import statistics

A, B = np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 9.0])


def test_a_paired_difference_has_another_interval_than_an_unpaired_one() -> None:
    """t of 2 degrees of freedom is 4.3027; of Welch's 2.309, 3.7998."""
    paired = statistics.difference(A, B, paired=True)  # 1, 2 and 6
    assert (paired.n, paired.mean, paired.sd) == (3, 3.0, pytest.approx(math.sqrt(7)))
    assert paired.interval == pytest.approx((3 - 6.5724, 3 + 6.5724), abs=1e-3)
    welch = statistics.difference(A, B, paired=False)
    assert (welch.n, welch.mean, welch.sd) == (3, 3.0, pytest.approx(math.sqrt((1 + 13) / 2)))
    assert welch.interval == pytest.approx((3 - 8.208, 3 + 8.208), abs=1e-2)


def test_what_has_no_spread_has_no_interval() -> None:
    """One value, or a difference that is the same in each pair but for rounding."""
    assert statistics.mean_of(np.array([1.0])) == statistics.Estimate(1, 1.0)
    assert statistics.difference(0.1 * A, 0.1 * A + 0.1, paired=True).interval is None
    assert statistics.difference(0.1 * A, 0.1 * A + 0.1, paired=False).interval is not None


@pytest.mark.parametrize(("paired", "expected"), [(False, 64), (True, 34)])
def test_seeds_to_decide_agree_with_the_exact_power(paired: bool, expected: int) -> None:
    """The smallest n with a power of 80 %, from the noncentral t distribution."""

    def power(n: int) -> float:
        freedom, shift = (n - 1, math.sqrt(n)) if paired else (2 * n - 2, math.sqrt(n / 2))
        return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, 0.5 * shift))

    assert statistics.seeds_to_decide(-0.5, 1.0, paired) == expected
    assert power(expected - 1) < 0.8 <= power(expected)
