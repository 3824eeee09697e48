"""Statistics of a set of runs: pure functions over numbers.

Intervals are percentile bootstrap intervals (Efron & Tibshirani 1993) that also hold for a handful
of runs. The plain interval is too narrow: of 3 normal values it contains the true mean 75 times in
100, not 95. So it is widened about the mean by sqrt(n / (n - 1)) and by Student's t over the normal
quantile (the two causes in Hesterberg 2015, "What Teachers Should Know About the Bootstrap",
https://arxiv.org/abs/1411.5279). Resampling draws from a fixed key and from sorted values: the same
values give the same interval, in whatever order they come.
"""

import math
from collections.abc import Iterator
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, stdtrit  # type: ignore[import-untyped]

from seedbed import rng

Floats = NDArray[np.float64]
Interval = tuple[float, float]

RESAMPLES = 10_000
_BOOTSTRAP_KEY = 0x5EEDBED
_BLOCK = 1_000_000  # random numbers in memory at once


def standard_deviation(values: Floats) -> float:
    """Return the sample standard deviation (n - 1 below) of at least two values."""
    return float(np.std(values, ddof=1))


def interquartile_mean(values: Floats) -> float:
    """Return the mean of the middle half: a quarter of the values, rounded down, cut at each end.

    The convention of rliable (Agarwal et al. 2021, https://arxiv.org/abs/2108.13264).
    """
    cut = len(values) // 4
    return float(np.mean(np.sort(values)[cut : len(values) - cut]))


def mean_interval(values: Floats, preset: float = 0.95) -> Interval:
    """Return the bootstrap interval of the mean of at least two values."""
    quantile = float(stdtrit(len(values) - 1, 0.5 + preset / 2))
    return _interval(float(np.mean(np.sort(values))), _deviations(values, 0), quantile, preset)


def difference_interval(first: Floats, second: Floats, preset: float = 0.95) -> Interval:
    """Return the bootstrap interval of mean(second) - mean(first), for unpaired values.

    Each side is resampled on its own; Student's t has Welch's degrees of freedom.
    """
    deviations = _deviations(second, 1) - _deviations(first, 0)
    quantile = float(stdtrit(_welch_freedom(first, second), 0.5 + preset / 2))
    difference = float(np.mean(np.sort(second)) - np.mean(np.sort(first)))
    return _interval(difference, deviations, quantile, preset)


def probability_of_improvement(first: Floats, second: Floats, higher_is_better: bool) -> float:
    """Return how often a run of `second` is better than one of `first`; a tie counts half."""
    wins = np.sign(second[:, None] - first[None, :])
    return float(np.mean(0.5 + 0.5 * (wins if higher_is_better else -wins)))


def seeds_to_detect(
    difference: float, deviation: float, paired: bool = False, power: float = 0.8
) -> int | None:
    """Return how many runs each of two sweeps needs to detect a difference of their means.

    None for a difference of 0, which no number of runs detects.

    Two-sided test at 5 %; the normal approximation with Guenther's correction for Student's t
    (1981, The American Statistician 35(4), "Sample size formulas for normal theory t tests").

    Args:
        difference: between the means, in the unit of `deviation`.
        deviation: standard deviation between the runs of a sweep, or of the differences of pairs.
        paired: whether runs are compared in pairs with the same seeds.
        power: probability to detect the difference if it is there.
    """
    if difference == 0:
        return None
    z_test, z_power = NormalDist().inv_cdf(0.975), NormalDist().inv_cdf(power)
    n = ((z_test + z_power) * deviation / difference) ** 2
    n = n + z_test**2 / 2 if paired else 2 * n + z_test**2 / 4
    return max(2, math.ceil(n))


def deviation_interval(deviation: float, freedom: int, preset: float = 0.95) -> Interval:
    """Return the chi-square interval of a standard deviation of normal values.

    Args:
        deviation: the estimate.
        freedom: its degrees of freedom, at least 1.
    """
    low, high = (float(chdtri(freedom, tail)) for tail in (0.5 - preset / 2, 0.5 + preset / 2))
    return deviation * math.sqrt(freedom / low), deviation * math.sqrt(freedom / high)


def pooled_deviation(groups: list[Floats]) -> tuple[float, int]:
    """Return the standard deviation within groups and its degrees of freedom (0: no spread)."""
    freedom = sum(len(values) - 1 for values in groups)
    squares = sum(float(np.sum((values - np.mean(values)) ** 2)) for values in groups)
    return (math.sqrt(squares / freedom) if freedom else math.nan), freedom


def binomial_deviation(accuracy: float, samples: int) -> float:
    """Return the spread of an accuracy over test sets drawn anew: sqrt(p (1 - p) / n)."""
    return math.sqrt(accuracy * (1 - accuracy) / samples)


def independent_error_deviation(right_counts: NDArray[np.int64], runs: int) -> float:
    """Return the spread of the accuracy if every sample fell right or wrong on its own.

    sqrt(sum of p (1 - p)) / n over the samples, p the fraction of runs that got a sample right
    (Jordan 2023, https://arxiv.org/abs/2304.01910), times sqrt(runs / (runs - 1)): p is estimated
    from the same runs, and so would come out too sure of itself.

    Args:
        right_counts: int64 (samples,), how many runs got each sample right.
        runs: at least 2.
    """
    p = right_counts / runs
    variance = float(np.sum(p * (1 - p))) * runs / (runs - 1)
    return math.sqrt(variance) / len(right_counts)


def _interval(center: float, deviations: Floats, quantile: float, preset: float) -> Interval:
    """Turn deviations from the mean into an interval, widened to a quantile of Student's t."""
    widening = quantile / NormalDist().inv_cdf(0.5 + preset / 2)
    low, high = np.quantile(deviations, [0.5 - preset / 2, 0.5 + preset / 2])
    return center + widening * float(low), center + widening * float(high)


def _deviations(values: Floats, position: int) -> Floats:
    """Return how far the means of resamples lie from the mean, free of the bias of small n."""
    values = np.sort(values)
    n = len(values)
    means = [values[chosen].mean(axis=1) for chosen in _resamples(n, position)]
    deviations: Floats = np.concatenate(means) - values.mean()
    return deviations * math.sqrt(n / (n - 1))


def _resamples(n: int, position: int) -> Iterator[NDArray[np.int64]]:
    """Yield int64 (resamples, n) blocks of indices drawn with replacement."""
    rows = max(1, _BLOCK // n)
    for start in range(0, RESAMPLES, rows):
        ids = np.arange(start, min(start + rows, RESAMPLES))
        yield (rng.uniform(_BOOTSTRAP_KEY + position, ids, n) * n).astype(np.int64)


def _welch_freedom(first: Floats, second: Floats) -> float:
    """Return the degrees of freedom of Welch's t test; 1 where no value varies."""
    parts = [float(np.var(values, ddof=1)) / len(values) for values in (first, second)]
    below = sum(p**2 / (len(v) - 1) for p, v in zip(parts, (first, second), strict=True))
    return sum(parts) ** 2 / below if below else 1.0
