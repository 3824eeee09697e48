"""The statistics of sweeps, against SciPy and other independent computations."""

import math

import numpy as np
import pytest
from scipy import stats

from seedbed.sweeps import statistics

X = np.array([1.0, 2.0, 3.0])
Y = np.array([2.0, 4.0, 9.0])


def test_a_paired_difference_has_another_interval_than_an_unpaired_one() -> None:
    """The t quantile is 4.3027 for 2 degrees of freedom, 3.7998 for Welch's 2.309.
    Without spread there is no interval: one value, or differences of pairs that are
    equal up to rounding."""
    paired = statistics.difference(X, Y, paired=True)  # 1, 2 and 6
    assert (paired.n, paired.mean, paired.sd) == (3, 3.0, pytest.approx(math.sqrt(7)))
    assert paired.interval == pytest.approx((3 - 6.5724, 3 + 6.5724), abs=1e-3)
    welch = statistics.difference(X, Y, paired=False)
    assert (welch.n, welch.mean, welch.sd) == (
        3,
        3.0,
        pytest.approx(math.sqrt((1 + 13) / 2)),
    )
    assert welch.interval == pytest.approx((3 - 8.208, 3 + 8.208), abs=1e-2)
    assert statistics.mean_of(np.array([1.0])) == statistics.Estimate(1, 1.0)
    assert statistics.difference(0.1 * X, 0.1 * X + 0.1, paired=True).interval is None
    assert (
        statistics.difference(0.1 * X, 0.1 * X + 0.1, paired=False).interval is not None
    )


@pytest.mark.parametrize(("paired", "expected"), [(False, 64), (True, 34)])
def test_seeds_to_decide_agree_with_the_exact_power(
    paired: bool, expected: int
) -> None:
    """The result is the smallest n with a power of 80 %, by the noncentral t
    distribution."""

    def power(n: int) -> float:
        freedom, shift = (
            (n - 1, math.sqrt(n)) if paired else (2 * n - 2, math.sqrt(n / 2))
        )
        return float(stats.nct.sf(stats.t.ppf(0.975, freedom), freedom, 0.5 * shift))

    assert statistics.seeds_to_decide(-0.5, 1.0, paired) == expected
    assert power(expected - 1) < 0.8 <= power(expected)


def test_the_interval_of_a_mean_is_students_unless_folds_correct_it() -> None:
    """By SciPy's t test. Of ten folds, each a tenth of the samples, the standard error
    is that of Nadeau and Bengio (2003): sqrt((1 / 10 + 1 / 9) s^2), as written out
    here."""
    values = np.random.default_rng(0).normal(0.9, 0.01, 10)
    plain = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert statistics.mean_of(values).interval == pytest.approx(tuple(plain))
    low, high = statistics.mean_of(values, fold_ratio=1 / 9).interval or (0.0, 0.0)
    deviation = math.sqrt(sum((x - values.mean()) ** 2 for x in values) / 9)
    # t of 9 degrees of freedom
    half = 2.2621571628 * deviation * math.sqrt(0.1 + 1 / 9)
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half))


@pytest.mark.parametrize("confidence", [0.95, 0.99])
def test_a_difference_has_the_confidence_that_is_asked_for(confidence: float) -> None:
    for paired, test in ((True, stats.ttest_rel), (False, stats.ttest_ind)):
        extra = {} if paired else {"equal_var": False}
        expected = test(Y, X, **extra).confidence_interval(confidence)
        got = statistics.difference(X, Y, paired, confidence).interval
        assert got == pytest.approx(tuple(expected))


def exact_p(differences: np.ndarray) -> float:
    """Return the two-sided p value of all sign flips, by SciPy."""
    flips = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    return float(flips.pvalue)


@pytest.mark.parametrize(("n", "expected"), [(3, 0.25), (5, 0.0625), (6, 0.03125)])
def test_the_smallest_p_is_that_of_the_clearest_difference(
    n: int, expected: float
) -> None:
    """SciPy's permutation tests reach it when all values of one side are better."""
    clear = np.arange(1.0, n + 1)
    assert statistics.smallest_p(n, n, paired=True) == exact_p(clear) == expected
    unpaired = stats.permutation_test(
        (clear, clear + 100),
        lambda a, b: np.mean(a) - np.mean(b),
        n_resamples=np.inf,
    )
    assert statistics.smallest_p(n, n, paired=False) == pytest.approx(
        float(unpaired.pvalue)
    )


def test_the_share_won_counts_ties_as_half() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    b = np.array([0.0, 2.0, 4.0, 5.0])
    assert statistics.share_won(a, b, higher_is_better=True) == 1.5 / 4
    assert statistics.share_won(a, b, higher_is_better=False) == 2.5 / 4
    assert statistics.correlation(X, Y) == pytest.approx(float(np.corrcoef(X, Y)[0, 1]))
    assert statistics.correlation(X, np.ones(3)) is None
    assert statistics.correlation(X[:2], Y[:2]) is None, (
        "two points are always on a line"
    )


def bayes_factor(differences: np.ndarray) -> float:
    """Return the Bayes factor of effect sizes N(0, 1) against 0 by numerical
    integration."""
    n = len(differences)
    t = math.sqrt(n) * differences.mean() / differences.std(ddof=1)
    effects = np.linspace(-12, 12, 40001)
    density = stats.nct.pdf(t, n - 1, math.sqrt(n) * effects) * stats.norm.pdf(effects)
    return float(np.trapezoid(density, effects) / stats.t.pdf(t, n - 1))


@pytest.mark.parametrize("n", [5, 8, 20])
def test_the_sequential_interval_ends_where_the_bayes_factor_is_20(n: int) -> None:
    """The closed form agrees with integration over the noncentral t distribution."""
    differences = np.random.default_rng(n).normal(size=n)
    low, high = statistics.sequential_interval(differences) or (0.0, 0.0)
    for end in (low, high):
        assert bayes_factor(differences - end) == pytest.approx(20, rel=1e-3)
    for few in range(5):
        assert statistics.sequential_interval(differences[:few]) is None


def test_the_sequential_interval_holds_under_any_number_of_looks() -> None:
    """In 400 sweeps without a difference, somebody looks after every fourth seed, and
    stops at the first interval that excludes 0. Negative control: the t interval is
    fooled four times as often as it promises. And a real difference is found."""
    random = np.random.default_rng(0)
    wrong = {"sequential": 0, "t": 0}
    found = 0
    for _ in range(400):
        differences = random.normal(size=60)
        looks = [differences[:n] for n in range(4, 61, 4)]
        for name, interval in (
            ("sequential", statistics.sequential_interval),
            ("t", lambda values: statistics.mean_of(values).interval),
        ):
            wrong[name] += any(excludes_zero(interval(values)) for values in looks)
        found += excludes_zero(statistics.sequential_interval(differences[:20] + 1.0))
    assert wrong["sequential"] <= 0.05 * 400
    assert wrong["t"] > 0.2 * 400, "negative control"
    assert found > 0.7 * 400


def excludes_zero(interval: statistics.Interval | None) -> bool:
    return interval is not None and not interval[0] <= 0 <= interval[1]
