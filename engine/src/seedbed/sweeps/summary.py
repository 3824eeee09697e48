"""A group of runs in numbers: what they reached, how far they lie apart, and where that is from."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seedbed.errors import InputError
from seedbed.record import untrusted
from seedbed.sweeps import statistics
from seedbed.sweeps.groups import Group
from seedbed.sweeps.seeds import NO_FOLD, Seeds, by_column
from seedbed.sweeps.statistics import Floats, Interval

NONE = "-"
_MAX_PREDICTIONS_BYTES = 1 << 28


@dataclass(frozen=True)
class Scale:
    """How a metric is shown: accuracies in per cent, errors as they are."""

    metric: str

    @property
    def percent(self) -> bool:
        """Return whether values are shown in per cent."""
        return self.metric.endswith("accuracy")

    @property
    def title(self) -> str:
        """Return the metric's name with its unit."""
        return self.metric.replace("_", " ") + (" (%)" if self.percent else "")

    def show(self, value: float | None, sign: str = "") -> str:
        """Return a value as text; `sign` "+" shows the sign of a difference."""
        if value is None:
            return NONE
        return f"{100 * value:{sign}.3f}" if self.percent else f"{value:{sign}.4g}"

    def show_interval(self, interval: Interval | None, sign: str = "") -> str:
        """Return an interval as text."""
        if interval is None:
            return NONE
        return f"{self.show(interval[0], sign)} to {self.show(interval[1], sign)}"

    def differences(self, mean: float) -> tuple[float, float]:
        """Return the differences to ask about: 0.1 and 0.5 points, or 1 and 5 % of an error."""
        return (0.001, 0.005) if self.percent else (0.01 * mean, 0.05 * mean)

    @property
    def difference_names(self) -> tuple[str, str]:
        """Name the differences to ask about."""
        return ("0.1 points", "0.5 points") if self.percent else ("1 % of the mean", "5 % of it")


@dataclass(frozen=True)
class Summary:
    """A group in numbers. What takes two seeds, or a record of predictions, may be None."""

    group: str
    metric: str
    n: int | None  # independent seeds, or folds of one; mean, sd and interval are theirs
    mean: float
    sd: float | None
    interval_low: float | None
    interval_high: float | None
    median: float
    interquartile_mean: float
    minimum: float
    minimum_seed: str
    maximum: float
    maximum_seed: str
    test_samples: int | None
    new_test_set_sd: float | None
    independent_errors_sd: float | None
    seeds_for_small_difference: int | None
    seeds_for_large_difference: int | None

    @property
    def interval(self) -> Interval | None:
        """Return the bootstrap interval of the mean."""
        if self.interval_low is None or self.interval_high is None:
            return None
        return self.interval_low, self.interval_high


@dataclass(frozen=True)
class Source:
    """How much the metric varies when one thing does."""

    name: str
    runs: int
    sd: float
    interval: Interval


def summarise(group: Group) -> Summary:
    """Return a group in numbers."""
    by_value = sorted(group.values, key=lambda seeds: group.values[seeds])
    values = np.array([group.values[seeds] for seeds in by_value])
    draws = np.array(sorted(independent_values(group).values()))
    mean = float(np.mean(draws if len(draws) else values))
    several = len(draws) > 1
    sd = statistics.standard_deviation(draws) if several else None
    low, high = _mean_interval(group.metric, draws) if several else (None, None)
    counts = right_counts(group) if group.metric == "test_accuracy" else None
    independent = None
    if counts is not None and len(values) > 1:
        independent = statistics.independent_error_deviation(counts, len(values))
    spread = sd if group.unit == "seeds" else None  # more folds are no remedy
    small, large = Scale(group.metric).differences(mean)
    return Summary(
        group=group.label,
        metric=group.metric,
        n=len(draws) or None,
        mean=mean,
        sd=sd,
        interval_low=low,
        interval_high=high,
        median=float(np.median(values)),
        interquartile_mean=statistics.interquartile_mean(values),
        minimum=float(values[0]),
        minimum_seed=group.name_seeds(by_value[0]),
        maximum=float(values[-1]),
        maximum_seed=group.name_seeds(by_value[-1]),
        test_samples=None if counts is None else len(counts),
        new_test_set_sd=None
        if counts is None
        else statistics.binomial_deviation(mean, len(counts)),
        independent_errors_sd=independent,
        seeds_for_small_difference=statistics.seeds_to_detect(small, spread) if spread else None,
        seeds_for_large_difference=statistics.seeds_to_detect(large, spread) if spread else None,
    )


def _mean_interval(metric: str, values: Floats) -> Interval:
    """Return the interval of a mean; that of shares is within 0 and 1, like the mean itself."""
    low, high = statistics.mean_interval(values)
    if Scale(metric).percent and values.min() >= 0 and values.max() <= 1:
        return max(low, 0.0), min(high, 1.0)
    return low, high


def independent_values(group: Group) -> dict[Seeds, float]:
    """Return the values of runs that are independent of each other, by seeds.

    All, unless streams vary one at a time: such runs share their other seeds. Then those in which
    all vary together, or none if there are not two. The folds of one of several seeds are one
    value, their mean; those of a single seed are taken as they are.
    """
    values = dict(group.values) if group.unit == "folds" else _means_of_folds(group)
    if len(group.varied_streams) < 2 or not streams_vary_alone(group):
        return values
    together = {seeds: value for seeds, value in values.items() if group.in_step(seeds)}
    return together if len(together) > 1 else {}


def streams_vary_alone(group: Group) -> bool:
    """Return whether there are runs in which one stream differs and the others do not."""
    return any(_held_but(group, stream) for stream in group.varied_streams)


def _means_of_folds(group: Group) -> dict[Seeds, float]:
    """Return the mean over the folds of each seed that has them all, by seeds with NO_FOLD."""
    table: dict[Seeds, list[float]] = {}
    for seeds, value in group.values.items():
        table.setdefault((*seeds[:-1], NO_FOLD), []).append(value)
    whole = max(group.folds, 1)
    return {seeds: float(np.mean(each)) for seeds, each in table.items() if len(each) == whole}


def right_counts(group: Group) -> NDArray[np.int64] | None:
    """Return how many runs got each test sample right, one run for each seed.

    Returns:
        int64 (samples,); None if a run has no record of its predictions, or another test set.
    """
    if group.folds:
        return None
    counts: NDArray[np.int64] | None = None
    test_set: NDArray[np.int64] | None = None
    for runs in group.replicates.values():
        table = _read_predictions(runs[0].folder / "test_predictions.csv")
        if table is None or (test_set is not None and not np.array_equal(test_set, table[:, :2])):
            return None
        right = (table[:, 1] == table[:, 2]).astype(np.int64)
        counts, test_set = right if counts is None else counts + right, table[:, :2]
    return counts


def _read_predictions(path: Path) -> NDArray[np.int64] | None:
    """Return int64 (samples, 3): sample id, class, predicted class; None if there is none."""
    try:
        text = untrusted.read_bytes(path, _MAX_PREDICTIONS_BYTES)
        table = np.loadtxt(io.BytesIO(text), delimiter=",", skiprows=1, dtype=np.int64, ndmin=2)
    except (OSError, ValueError, InputError):
        return None
    return table if table.ndim == 2 and table.shape[1] == 3 and len(table) else None


def sources(group: Group) -> list[Source]:
    """Attribute the spread of a group: to each stream that was varied while others were held, and
    to folds, if seeds vary as well.

    The standard deviation is pooled over the sets of runs whose other seeds agree. `same seeds`
    stands for replicates; `all together` for the runs whose streams share one seed. Empty unless a
    stream was varied alone or seeds were repeated.
    """
    columns = group.varied if group.varied_streams else []
    alone = {column: _held_but(group, column) for column in columns}
    repeated = [
        np.array([run.value(group.metric) for run in runs])
        for runs in group.replicates.values()
        if len(runs) > 1
    ]
    sets: dict[str, list[Floats]] = {s: sets for s, sets in alone.items() if sets}
    if sets and len(group.varied_streams) > 1:
        sets["all together"] = _all_together(group)
    if repeated:
        sets["same seeds"] = repeated
    return [
        Source(name, sum(map(len, each)), sd, statistics.deviation_interval(sd, freedom))
        for name, each in sets.items()
        for sd, freedom in [statistics.pooled_deviation(each)]
        if freedom
    ]


def _held_but(group: Group, column: str) -> list[Floats]:
    """Return the values of runs in which only one of the seeds, or the fold, differs, by sets."""
    sets: dict[frozenset[tuple[str, int]], list[float]] = {}
    for seeds, value in group.values.items():
        held = frozenset(pair for pair in by_column(seeds).items() if pair[0] != column)
        sets.setdefault(held, []).append(value)
    return [np.array(values) for values in sets.values() if len(values) > 1]


def _all_together(group: Group) -> list[Floats]:
    """Return the values of the runs in which all streams that vary have one seed, fold by fold."""
    sets: dict[int, list[float]] = {}
    for seeds, value in group.values.items():
        if group.in_step(seeds):
            sets.setdefault(seeds[-1], []).append(value)
    return [np.array(values) for values in sets.values() if len(values) > 1]
