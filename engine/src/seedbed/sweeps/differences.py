"""The difference of two groups of runs, seed by seed or over all runs."""

from dataclasses import dataclass

import numpy as np

from seedbed.sweeps import statistics
from seedbed.sweeps.groups import Group
from seedbed.sweeps.statistics import Floats, Interval
from seedbed.sweeps.summary import Scale, independent_values


@dataclass(frozen=True)
class Difference:
    """The mean of B minus the mean of A, over pairs with the same seeds or over all runs."""

    paired: bool
    n_a: int
    n_b: int
    mean: float
    sd: float  # of the differences if paired, else pooled over both sweeps
    interval: Interval

    def cells(self, scale: Scale) -> tuple[str, str, str, str]:
        """Return over what, the difference, its deviation and interval, as cells of a table."""
        over = f"{self.n_a} pairs with the same seeds" if self.paired else "all runs"
        return (
            over,
            scale.show(self.mean, "+"),
            scale.show(self.sd),
            scale.show_interval(self.interval, "+"),
        )


def differences(a: Group, b: Group) -> list[Difference]:
    """Return the difference of two groups, paired and over all runs; the one that decides first.

    Paired decides if all seeds of the smaller group are in the other, too. Each needs two values,
    of runs that share no seeds with others of their group.
    """
    drawn_a, drawn_b = independent_values(a), independent_values(b)
    matching = [seeds for seeds in drawn_a if seeds in drawn_b]
    all_matched = len(matching) == min(len(drawn_a), len(drawn_b))
    found = []
    if min(len(drawn_a), len(drawn_b)) > 1:
        found.append(_unpaired(*(np.array(list(each.values())) for each in (drawn_a, drawn_b))))
    if len(matching) > 1:
        paired = _paired(np.array([drawn_b[seeds] - drawn_a[seeds] for seeds in matching]))
        found.insert(0 if all_matched else len(found), paired)
    return found


def _paired(values: Floats) -> Difference:
    sd = statistics.standard_deviation(values)
    interval = statistics.mean_interval(values)
    return Difference(True, len(values), len(values), float(np.mean(values)), sd, interval)


def _unpaired(a: Floats, b: Floats) -> Difference:
    sd, _ = statistics.pooled_deviation([a, b])
    interval = statistics.difference_interval(a, b)
    return Difference(False, len(a), len(b), float(np.mean(b) - np.mean(a)), sd, interval)
