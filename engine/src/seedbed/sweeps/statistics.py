"""Means over seeds, differences of two groups, and what so few seeds can show.

Intervals use Student's t: values, or differences of pairs, are assumed normal and
independent over seeds. Folds of one seed share training samples, so their variance is
corrected (`mean_of`).
"""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Floats = NDArray[np.float64]
Interval = tuple[float, float]

CONFIDENCE = 0.95
POWER = 0.8
_ROUNDING = 1e-9  # relative; rounding makes equal differences slightly unequal
# standard deviation of the effect sizes that `sequential_interval` looks for
_EFFECT = 1.0
_MOST_PAIRS = 1_000_000  # nobody trains more


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or the difference of two means."""

    n: int  # values, pairs, or unpaired values on the smaller side
    mean: float
    # Of values or differences of pairs; if unpaired, the root mean square of both
    # sides'.
    sd: float | None = None
    # None where there is no spread to estimate it from
    interval: Interval | None = None


def mean_of(
    values: Floats,
    confidence: float = CONFIDENCE,
    fold_ratio: float = 0.0,
    magnitude: float | None = None,
) -> Estimate:
    """Return the mean of one or more values; `magnitude` is that of the terms of
    differences.

    `fold_ratio` is n_test / n_train of folds of one seed. They share training samples,
    so the variance of their mean is estimated by (1 / n + n_test / n_train) times that
    of the values (Nadeau and Bengio 2003, Machine Learning 52).
    """
    n = len(values)
    mean = float(np.mean(values))
    sd = float(np.std(values, ddof=1)) if n > 1 else None
    magnitude = magnitude or float(np.abs(values).max())
    if sd is None or sd <= _ROUNDING * magnitude:
        return Estimate(n, mean, sd)
    scale = sd * math.sqrt(1 / n + fold_ratio)
    low, high = stats.t.interval(confidence, n - 1, loc=mean, scale=scale)
    return Estimate(n, mean, sd, (float(low), float(high)))


def difference(
    a: Floats,
    b: Floats,
    paired: bool,
    confidence: float = CONFIDENCE,
    fold_ratio: float = 0.0,
) -> Estimate:
    """Return mean(b) - mean(a) of two or more values per side: of pairs, or by Welch's
    t test."""
    magnitude = float(np.abs([*a, *b]).max())
    if paired:
        return mean_of(b - a, confidence, fold_ratio, magnitude)
    n = min(len(a), len(b))
    mean = float(np.mean(b) - np.mean(a))
    sd = math.sqrt(np.mean([np.var(a, ddof=1), np.var(b, ddof=1)]))
    if sd <= _ROUNDING * magnitude:
        return Estimate(n, mean, sd)
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(confidence)
    return Estimate(n, mean, sd, (float(low), float(high)))


def sequential_interval(
    differences: Floats, confidence: float = CONFIDENCE
) -> Interval | None:
    """Return an interval of the mean difference of pairs that holds however often one
    looks.

    The probability that the intervals after 2, 3, 4, ... pairs all contain the true
    mean is at least `confidence`, so pairs may be added until it excludes 0. It assumes
    what the t test does: independent normal differences. It inverts the Bayes factor of
    the t test with effect sizes distributed as N(0, c^2), c = 1, which is a test
    martingale in the t statistics (Goenen et al. 2005, The American Statistician 59(3);
    Wang and Ramdas 2025, Sequential Analysis 44(1)):

        (1 + n c^2)^(-1/2) ((1 + u) / (1 + u / (1 + n c^2)))^(n / 2) < 1 / alpha,  u =
        t^2 / (n - 1)

    None while no interval is bounded: with 95 %, up to four pairs.
    """
    width = _sequential_width(len(differences), confidence)
    if width is None:
        return None
    mean = float(np.mean(differences))
    half = width * float(np.std(differences, ddof=1))
    return mean - half, mean + half


def _sequential_width(n: int, confidence: float) -> float | None:
    """Return half the width of the sequential interval of n pairs in standard
    deviations; None while it is not bounded."""
    if n < 2:
        return None
    spread = 1 + n * _EFFECT**2
    bound = (spread / (1 - confidence) ** 2) ** (1 / n)
    if bound >= spread:
        return None
    u = (bound - 1) / (1 - bound / spread)
    return math.sqrt(u * (n - 1) / n)


def least_pairs(confidence: float = CONFIDENCE) -> int:
    """Return from how many pairs on a sequential interval is bounded."""
    return next(n for n in itertools.count(2) if _sequential_width(n, confidence))


def side(interval: Interval, smallest: float = 0.0) -> int:
    """Return on which side of a difference that does not matter an interval lies.

    That is 1 above `smallest`, -1 below -`smallest`, and 0 if it is undecided.
    """
    low, high = interval
    return (low > smallest) - (high < -smallest)


def pairs_until_decided(
    a: Floats, b: Floats, confidence: float = CONFIDENCE, smallest: float = 0.0
) -> int:
    """Return after how many pairs the sequential interval first lies on one side.

    That is when a sequential rule stops; all pairs if it has not stopped.
    """
    for n in range(2, len(a)):
        if _is_decided(a[:n], b[:n], confidence, smallest):
            return n
    return len(a)


def _is_decided(a: Floats, b: Floats, confidence: float, smallest: float) -> bool:
    interval = sequential_interval(b - a, confidence)
    if interval is None or side(interval, smallest) == 0:
        return False
    return difference(a, b, paired=True).interval is not None  # there is a spread


def correlation(a: Floats, b: Floats) -> float | None:
    """Return Pearson's correlation of three or more pairs; None if a side does not
    vary."""
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(stats.pearsonr(a, b).statistic)


def variance_ratio(a: Floats, b: Floats) -> float | None:
    """Return the variance of the differences of pairs, as a share of that of the
    differences of unpaired values; None if no side varies."""
    unpaired = np.var(a, ddof=1) + np.var(b, ddof=1) if len(a) > 1 else 0.0
    return float(np.var(b - a, ddof=1) / unpaired) if unpaired else None


def share_won(a: Floats, b: Floats, higher_is_better: bool) -> float:
    """Return the share of pairs in which a is better; ties count as half."""
    gain = a - b if higher_is_better else b - a
    return float(np.mean(np.heaviside(gain, 0.5)))


def smallest_p(n_a: int, n_b: int, paired: bool) -> float:
    """Return the smallest two-sided p value that an exact test can reach with so few
    values.

    It assumes no distribution: the signs of paired differences are flipped in 2^n ways,
    unpaired values are divided among the sides in C(n_a + n_b, n_a) ways.
    """
    ways = 2**n_a if paired else math.comb(n_a + n_b, n_a)
    return min(1.0, 2 / ways)


def seeds_to_decide(
    mean: float, sd: float, paired: bool, confidence: float = CONFIDENCE
) -> int:
    """Return how many seeds per side it takes to exclude 0 from the interval with power
    POWER.

    Assumes that the true difference d (not 0) and deviation s are the observed ones.
    With z = a + b, where a and b are the normal quantiles of the confidence (two-sided)
    and POWER, it takes (z s / d)^2 + a^2 / 2 pairs, or 2 (z s / d)^2 + a^2 / 4 unpaired
    seeds per side; the last terms correct for Student's t (Guenther 1981, The American
    Statistician 35(4)).
    """
    a = float(stats.norm.ppf(0.5 + confidence / 2))
    b = float(stats.norm.ppf(POWER))
    n = ((a + b) * sd / mean) ** 2
    return max(2, math.ceil(n + a**2 / 2 if paired else 2 * n + a**2 / 4))


def pairs_to_decide(mean: float, sd: float, confidence: float = CONFIDENCE) -> int:
    """Return after how many pairs the sequential interval excludes 0.

    Assumes that the mean (not 0) and the deviation stay the given ones.
    """
    decided = 2
    while not _excludes(decided, mean, sd, confidence):
        decided *= 2
    undecided = decided // 2
    while decided - undecided > 1:
        n = (undecided + decided) // 2
        if _excludes(n, mean, sd, confidence):
            decided = n
        else:
            undecided = n
    return decided


def _excludes(n: int, mean: float, sd: float, confidence: float) -> bool:
    width = _sequential_width(n, confidence)
    return n > _MOST_PAIRS or (width is not None and width * sd < abs(mean))
