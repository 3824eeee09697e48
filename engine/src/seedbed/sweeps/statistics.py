"""Means over seeds, their differences, and how many seeds a difference takes.

Student's t throughout: values, or the differences of pairs, are taken to be normal over seeds.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

Floats = NDArray[np.float64]

CONFIDENCE = 0.95
POWER = 0.8
_ROUNDING = 1e-9  # relative; equal differences of other floats are not quite equal


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, or a difference of two."""

    n: int  # values, pairs, or unpaired values a side (the smaller number)
    mean: float
    # Between values or differences of pairs; of unpaired ones the root mean square of both sides.
    sd: float | None = None
    interval: tuple[float, float] | None = None  # None where there is no spread to estimate it from


def mean_of(values: Floats | list[float], magnitude: float | None = None) -> Estimate:
    """Return the mean of at least one value; `magnitude` is of what they are differences of."""
    n, mean = len(values), float(np.mean(values))
    sd = float(np.std(values, ddof=1)) if n > 1 else None
    magnitude = magnitude or float(np.abs(values).max())
    if sd is None or sd <= _ROUNDING * magnitude:
        return Estimate(n, mean, sd)
    low, high = stats.ttest_1samp(values, 0.0).confidence_interval(CONFIDENCE)
    return Estimate(n, mean, sd, (float(low), float(high)))


def difference(a: Floats, b: Floats, paired: bool) -> Estimate:
    """Return mean(b) - mean(a) of at least two values a side: of pairs, or by Welch's t test."""
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
    """Return how many seeds a side exclude 0 from the interval with a power of POWER.

    Assumes that the true difference d (not 0) and deviation s are the observed ones. With z = a +
    b, of the normal quantiles a of CONFIDENCE (two-sided) and b of POWER, it takes
    (z s / d)^2 + a^2 / 2 pairs, or 2 (z s / d)^2 + a^2 / 4 unpaired seeds a side; the last terms
    correct for Student's t (Guenther 1981, The American Statistician 35(4)).
    """
    a, b = float(stats.norm.ppf(0.5 + CONFIDENCE / 2)), float(stats.norm.ppf(POWER))
    n = ((a + b) * sd / mean) ** 2
    return max(2, math.ceil(n + a**2 / 2 if paired else 2 * n + a**2 / 4))
