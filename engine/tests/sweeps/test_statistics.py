"""Laws of the statistics over runs."""

import math

import numpy as np
import pytest
from scipy import stats

from seedbed import rng
from seedbed.sweeps import statistics


def normal_values(number: int, n: int, experiments: int) -> np.ndarray:
    """Return standard normal values (experiments, n), the same on every machine."""
    draws = rng.uniform(rng.key(number, "data"), np.arange(experiments), n)
    return stats.norm.ppf(draws)


def coverage(n: int, experiments: int = 400) -> float:
    """Return how often the interval of n standard normal values contains their mean, 0."""
    values = normal_values(7, n, experiments)
    hits = [low <= 0 <= high for low, high in map(statistics.mean_interval, values)]
    return float(np.mean(hits))


@pytest.fixture
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "RESAMPLES", 1000)


@pytest.mark.usefixtures("_few_resamples")
@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_interval_contains_the_true_mean_95_times_in_100(n: int) -> None:
    """Also of two or three seeds, where 400 draws say too little of a rate this near its bound."""
    assert 0.92 <= coverage(n, experiments=2000) <= 0.98


@pytest.mark.usefixtures("_few_resamples")
def test_plain_percentile_interval_of_three_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without the widening, three values are claimed to say more than they do."""
    monkeypatch.setattr(statistics, "stdtrit", lambda freedom, p: stats.norm.ppf(p))
    assert coverage(3) < 0.9


@pytest.mark.usefixtures("_few_resamples")
@pytest.mark.parametrize(("n_a", "n_b"), [(3, 3), (3, 10), (10, 10)])
def test_equal_sweeps_are_told_apart_at_most_5_times_in_100(n_a: int, n_b: int) -> None:
    """The interval of a difference that is not there contains zero."""
    pairs = zip(normal_values(1, n_a, 300), normal_values(2, n_b, 300), strict=True)
    intervals = [statistics.difference_interval(a, b) for a, b in pairs]
    assert np.mean([not low <= 0 <= high for low, high in intervals]) <= 0.08


@pytest.mark.usefixtures("_few_resamples")
def test_different_sweeps_are_told_apart() -> None:
    """Negative control: a difference of three standard deviations is seen with ten seeds."""
    pairs = zip(normal_values(1, 10, 50), normal_values(2, 10, 50) + 3, strict=True)
    assert all(statistics.difference_interval(a, b)[0] > 0 for a, b in pairs)


def test_interval_is_a_function_of_the_values_alone() -> None:
    """Neither the order of the runs nor the global generator changes it; a value does."""
    values = normal_values(3, 12, 1)[0]
    first = statistics.mean_interval(values)
    np.random.seed(1)
    assert statistics.mean_interval(values[::-1].copy()) == first
    assert statistics.mean_interval(values + np.eye(12)[0]) != first


def test_interval_of_equal_values_is_that_value() -> None:
    """No spread, no width."""
    assert statistics.mean_interval(np.full(5, 0.25)) == (0.25, 0.25)


def test_interval_approaches_students_t() -> None:
    """For many normal values both say the same, to a twentieth of the width."""
    values = normal_values(4, 200, 1)[0]
    expected = stats.t.interval(0.95, 199, values.mean(), stats.sem(values))
    assert np.allclose(statistics.mean_interval(values), expected, atol=0.015)


def test_interquartile_mean_is_the_trimmed_mean_of_rliable() -> None:
    """A quarter of the values, rounded down, goes at each end."""
    for n in range(1, 12):
        values = normal_values(5, n, 1)[0]
        assert statistics.interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))
    assert statistics.interquartile_mean(np.array([0.0, 1.0, 2.0, 99.0])) == 1.5


def test_probability_of_improvement_counts_every_pair() -> None:
    """Of a and b: 4 wins and a tie of 6 pairs."""
    a, b = np.array([1.0, 2.0]), np.array([2.0, 3.0, 1.5])
    assert statistics.probability_of_improvement(a, b, higher_is_better=True) == 4.5 / 6
    assert statistics.probability_of_improvement(a, b, higher_is_better=False) == 1.5 / 6
    assert statistics.probability_of_improvement(a, a, higher_is_better=True) == 0.5


@pytest.mark.parametrize(("effect", "expected"), [(1.0, 17), (0.5, 64), (0.2, 394)])
def test_seeds_to_detect_agree_with_the_exact_power_of_the_t_test(
    effect: float, expected: int
) -> None:
    """The smallest n a side with a power of 80 %, from the noncentral t distribution."""

    def power(n: int) -> float:
        freedom, shift = 2 * n - 2, effect * math.sqrt(n / 2)
        critical = stats.t.ppf(0.975, freedom)
        return float(stats.nct.sf(critical, freedom, shift))

    assert statistics.seeds_to_detect(effect, 1.0) == expected
    assert power(expected - 1) < 0.8 <= power(expected)


def test_pairs_to_detect_agree_with_the_exact_power_of_the_paired_t_test() -> None:
    """34 pairs for half a standard deviation of the differences."""
    n = statistics.seeds_to_detect(0.5, 1.0, paired=True)
    power = [stats.nct.sf(stats.t.ppf(0.975, m - 1), m - 1, 0.5 * math.sqrt(m)) for m in (n - 1, n)]
    assert n == 34
    assert power[0] < 0.8 <= power[1]


def test_interval_of_a_deviation_contains_the_true_one_95_times_in_100() -> None:
    """Of ten normal values with standard deviation 1."""
    deviations = normal_values(6, 10, 1000).std(axis=1, ddof=1)
    intervals = [statistics.deviation_interval(deviation, 9) for deviation in deviations]
    assert 0.93 <= np.mean([low <= 1 <= high for low, high in intervals]) <= 0.97


def test_pooled_deviation_forgets_where_the_groups_lie() -> None:
    """Three degrees of freedom; shifting a group changes nothing, widening it does."""
    a, b = np.array([0.0, 1.0, 2.0]), np.array([5.0, 7.0])
    assert statistics.pooled_deviation([a, b]) == (pytest.approx(math.sqrt(4 / 3)), 3)
    assert statistics.pooled_deviation([a + 9, b]) == statistics.pooled_deviation([a, b])
    assert statistics.pooled_deviation([2 * a, b])[0] > statistics.pooled_deviation([a, b])[0]


@pytest.mark.parametrize("runs", [3, 40])
def test_independent_errors_explain_the_spread_of_runs_that_err_by_chance(runs: int) -> None:
    """Predicted and observed variance agree on average over many sweeps, also of three runs."""
    predicted, observed = zip(*(chance_sweep(number, runs) for number in range(200)), strict=True)
    assert np.mean(np.square(predicted)) == pytest.approx(np.mean(np.square(observed)), rel=0.15)


def chance_sweep(number: int, runs: int) -> tuple[float, float]:
    """Return predicted and observed deviation of runs in which each sample falls on its own."""
    draws = rng.uniform(rng.key(number, "data"), np.arange(runs), 300)
    right = draws < np.linspace(0.5, 1.0, 300)
    predicted = statistics.independent_error_deviation(right.sum(axis=0), runs)
    return predicted, statistics.standard_deviation(right.mean(axis=1))


def test_independent_errors_do_not_explain_runs_that_err_together() -> None:
    """Negative control: half of the runs fail on the same half of the samples."""
    right = np.ones((10, 300), dtype=bool)
    right[:5, :150] = False
    predicted = statistics.independent_error_deviation(right.sum(axis=0), 10)
    assert predicted < 0.2 * statistics.standard_deviation(right.mean(axis=1))


def test_binomial_deviation_is_largest_at_one_half() -> None:
    """sqrt(p (1 - p) / n)."""
    assert statistics.binomial_deviation(0.5, 100) == 0.05
    assert statistics.binomial_deviation(1.0, 100) == 0.0
