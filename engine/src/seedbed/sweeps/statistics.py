"""Means over seeds, their differences, and how many seeds it takes to decide on a difference.

All intervals use Student's t: values, or differences of pairs, are assumed normal over seeds.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
POWER = 0.8
_ROUNDING = 1e-9  # relative; rounding makes equal differences slightly unequal


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or the difference of two means."""

    n: int  # values, pairs, or unpaired values on the smaller side
    mean: float
    # Of values or differences of pairs; if unpaired, the root mean square of both sides'.
    sd: float | None = None
    interval: tuple[float, float] | None = None  # None where there is no spread to estimate it from


def mean_of(values: Floats | list[float], magnitude: float | None = None) -> Estimate:
    """Return the mean of one or more values; `magnitude` is that of the terms of differences."""
    n, mean = len(values), float(np.mean(values))
    sd = float(np.std(values, ddof=1)) if n > 1 else None
    magnitude = magnitude or float(np.abs(values).max())
    if sd is None or sd <= _ROUNDING * magnitude:
        return Estimate(n, mean, sd)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return Estimate(n, mean, sd, (float(low), float(high)))


def difference(a: Floats, b: Floats, paired: bool) -> Estimate:
    """Return mean(b) - mean(a) of two or more values per side: of pairs, or by Welch's t test."""
    magnitude = float(np.abs([*a, *b]).max())
    if paired:
        return mean_of(b - a, magnitude)
    n, mean = min(len(a), len(b)), float(np.mean(b) - np.mean(a))
    sd = math.sqrt(np.mean([np.var(a, ddof=1), np.var(b, ddof=1)]))
    if sd <= _ROUNDING * magnitude:
        return Estimate(n, mean, sd)
    low, high = stats.ttest_ind(b, a, equal_var=False).confidence_interval(CONFIDENCE)
    return Estimate(n, mean, sd, (float(low), float(high)))


def seeds_to_decide(mean: float, sd: float, paired: bool) -> int:
    """Return how many seeds per side it takes to exclude 0 from the interval with power POWER.

    Assumes that the true difference d (not 0) and deviation s are the observed ones. With z = a +
    b, where a and b are the normal quantiles of CONFIDENCE (two-sided) and POWER, it takes
    (z s / d)^2 + a^2 / 2 pairs, or 2 (z s / d)^2 + a^2 / 4 unpaired seeds per side; the last terms
    correct for Student's t (Guenther 1981, The American Statistician 35(4)).
    """
    a, b = float(stats.norm.ppf(0.5 + CONFIDENCE / 2)), float(stats.norm.ppf(POWER))
    n = ((a + b) * sd / mean) ** 2
    return max(2, math.ceil(n + a**2 / 2 if paired else 2 * n + a**2 / 4))
