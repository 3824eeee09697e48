"""The comparison of two groups of runs: the difference of their means, and what it can
show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd

from seedbed.record import Change
from seedbed.sweeps import differences, statistics
from seedbed.sweeps.groups import Group
from seedbed.sweeps.statistics import Estimate, Floats, Interval


@dataclass(frozen=True)
class Comparison:
    """Whether B is better than A, and why that may be. What is None cannot be given."""

    a: str  # names of the groups
    b: str
    paired: bool  # by seed
    confidence: float  # of the intervals
    differs: Sequence[Change]
    not_comparable: Sequence[str]  # why there is no verdict
    cautions: Sequence[str]  # what else may explain the difference
    # better, worse; higher, lower if it is unknown which is better
    verdict: str = "undecided"
    difference: Estimate | None = None
    sequential_interval: Interval | None = None  # see `statistics.sequential_interval`
    decided_by: str = "t"  # or sequential
    correlation: float | None = None  # of pairs
    variance_ratio: float | None = None  # see `statistics.variance_ratio`
    a_wins: float | None = None  # the share of pairs in which A is better
    smallest_p: float | None = None  # see `statistics.smallest_p`
    seeds_to_decide: int | None = None  # per side
    seeds_still_needed: int | None = None


@dataclass(frozen=True)
class Rule:
    """When a difference is decided: once its interval lies beyond `smallest`."""

    is_sequential: bool = False  # by the sequential interval, also without added seeds
    smallest: float = 0.0  # difference that matters


def compare(
    a: Group,
    b: Group,
    names: tuple[str, str],
    confidence: float,
    rule: Rule = Rule(),
) -> Comparison:
    """Compare two groups; they are paired by seed if the larger one has all seeds of
    the smaller.

    A difference takes two independent seeds on each side.
    """
    changes = differences.between(a, b)
    pairs = pd.concat([a.values, b.values], axis=1, keys=["a", "b"]).dropna()
    paired = 0 < len(pairs) == min(len(a.values), len(b.values))
    x = (pairs["a"] if paired else a.values).to_numpy()
    y = (pairs["b"] if paired else b.values).to_numpy()
    reasons = [
        *differences.obstacles(a, b, names, changes),
        *_too_few(a, b, x, y, paired),
    ]
    cautions = list(differences.cautions(a, b, names, changes))
    comparison = Comparison(*names, paired, confidence, changes, reasons, cautions)
    return comparison if reasons else _with_difference(comparison, a, b, x, y, rule)


def _too_few(a: Group, b: Group, x: Floats, y: Floats, paired: bool) -> list[str]:
    """Return why no difference can be estimated from so few values, if so."""
    if not a.runs or not b.runs:
        return []  # named among the obstacles
    if min(len(x), len(y)) < 2 or not (a.is_independent and b.is_independent):
        return ["it takes two independent seeds on each side"]
    if a.fold_ratio is None or b.fold_ratio is None:
        return ["folds of one seed, whose sizes are not recorded"]
    if (a.fold_ratio or b.fold_ratio) and not paired:
        return ["folds of one seed are compared with the same folds alone"]
    return []


def _with_difference(
    comparison: Comparison, a: Group, b: Group, x: Floats, y: Floats, rule: Rule
) -> Comparison:
    """Return a comparison with the difference of values, and what so many seeds can
    show."""
    paired = comparison.paired
    fold_ratio = max(a.fold_ratio or 0.0, b.fold_ratio or 0.0)
    difference = statistics.difference(x, y, paired, comparison.confidence, fold_ratio)
    is_sequential = rule.is_sequential or any(map(differences.added_after_look, (a, b)))
    comparison = replace(
        comparison,
        difference=difference,
        decided_by="sequential" if is_sequential else "t",
        correlation=statistics.correlation(x, y) if paired else None,
        variance_ratio=statistics.variance_ratio(x, y) if paired else None,
    )
    if paired and b.higher_is_better is not None:
        a_wins = statistics.share_won(x, y, b.higher_is_better)
        comparison = replace(comparison, a_wins=a_wins)
    # folds are not exchangeable, and more of them need other training sets
    if not fold_ratio:
        comparison = _with_limits(comparison, x, y, rule)
    interval = comparison.sequential_interval if is_sequential else difference.interval
    if difference.interval is None or interval is None:
        return comparison
    side = statistics.side(interval, rule.smallest)
    if side == 0:
        return comparison
    verdicts = (
        ("higher", "lower") if b.higher_is_better is None else ("better", "worse")
    )
    is_worse = (side > 0) == (b.higher_is_better is False)
    return replace(comparison, verdict=verdicts[is_worse])


def _with_limits(
    comparison: Comparison, x: Floats, y: Floats, rule: Rule
) -> Comparison:
    """Return a comparison with what its number of seeds can show, and how many would
    decide it."""
    paired = comparison.paired
    confidence = comparison.confidence
    sequential = statistics.sequential_interval(y - x, confidence) if paired else None
    smallest_p = statistics.smallest_p(len(x), len(y), paired)
    comparison = replace(
        comparison, sequential_interval=sequential, smallest_p=smallest_p
    )
    d = comparison.difference
    if d is None or d.interval is None or not d.sd:
        return comparison
    beyond = abs(d.mean) - rule.smallest
    is_decided = statistics.side(d.interval, rule.smallest) != 0
    if is_decided or comparison.decided_by == "sequential" or beyond <= 0:
        return comparison
    needed = statistics.seeds_to_decide(beyond, d.sd, paired, confidence)
    still = max(0, needed - d.n)
    return replace(comparison, seeds_to_decide=needed, seeds_still_needed=still)
