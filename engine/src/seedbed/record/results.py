"""The results of a run: which weights are the best, and the values of its weights by
step."""

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MEAN = "_epoch"  # in metrics.csv, after the name of the value


@dataclass(frozen=True)
class Monitor:
    """The value of validations by which weights are compared, and its direction."""

    name: str  # as `compute` returns it, such as `accuracy`
    higher_is_better: bool

    def __str__(self) -> str:
        return (
            f"{self.metric}, {'higher' if self.higher_is_better else 'lower'} is better"
        )

    @property
    def metric(self) -> str:
        """The name in summary.json's `metrics`."""
        return f"validation_{self.name}"

    def direction_of(self, objective: str) -> str | None:
        """Return whether a sweeper has to `maximize` or `minimize` a value that
        `by_name` has; None if it is not known which is better."""
        name = objective.removeprefix("last_").partition("_")[2]
        higher = {"loss": False, self.name: self.higher_is_better}.get(name)
        return {True: "maximize", False: "minimize", None: None}[higher]

    def improves(self, value: float, best: float | None) -> bool:
        """Return whether a value is better than the best so far; a NaN or infinity
        never is."""
        sign = 1 if self.higher_is_better else -1
        return math.isfinite(value) and (best is None or sign * value > sign * best)


BY_LOSS = Monitor("loss", higher_is_better=False)


class Results:
    """The values of evaluated weights, by the rows of metrics.csv."""

    def __init__(self, rows: Iterable[Mapping[str, object]] = ()) -> None:
        self._train: dict[str, float] = {}
        self._by_step: dict[int, dict[str, float]] = {}  # in the order of the rows
        # of losses and metrics of held-out samples, in the order of the rows
        self.names: dict[str, None] = {}
        self.tested_step: int | None = None  # of the last test
        self.add(rows)

    def add(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            if row["phase"] == "train":
                if loss := str(row.get("loss", "")):
                    self._train = {"train_loss": float(loss)}
                continue
            step = int(str(row["step"]))
            if row["phase"] == "test":
                self.tested_step = step
            values = self._by_step.setdefault(step, {})
            for name, cell in row.items():
                if name not in ("step", "epoch", "phase") and cell != "":
                    values[f"{row['phase']}_{name}"] = float(str(cell))
                    self.names[name] = None

    @property
    def last_step(self) -> int:
        """The last step whose weights were evaluated; 0 if there is none."""
        return max(self._by_step, default=0)

    def of(self, step: int) -> dict[str, float]:
        """Return the values of the weights of a step: `validation_loss`, `test_loss`,
        ..."""
        return dict(self._by_step.get(step, {}))

    def last(self) -> dict[str, float]:
        """Return the values of the last weights, and `train_loss`, of the last logged
        batch."""
        return self._train | self.of(self.last_step)

    def best_step(self, monitor: Monitor, first: int = 0) -> int:
        """Return the step of the best weights, from a first one on; 0 if there are
        none."""
        best_step = 0
        best = None
        for step, values in self._by_step.items():
            value = values.get(monitor.metric, math.nan)
            if step >= first and monitor.improves(value, best):
                best_step = step
                best = value
        return best_step

    def best_steps(self, monitor: Monitor, count: int, first: int = 0) -> list[int]:
        """Return the steps of the best validations from a first step on, the best one
        first.

        Of equal values, the earlier one is better.
        """
        sign = -1 if monitor.higher_is_better else 1
        known = [
            (sign * values[monitor.metric], step)
            for step, values in self._by_step.items()
            if step >= first and not math.isnan(values.get(monitor.metric, math.nan))
        ]
        return [step for _, step in sorted(known)[:count]]


class EpochMeans:
    """The means of training values over an epoch, for the row of its last step.

    A NaN, such as the accuracy of a batch without labels, is left out.
    """

    def __init__(self, sums: Mapping[str, Sequence[float]] = {}) -> None:
        """Continue with the `sums` of an unfinished epoch."""
        self.sums = {name: [total, count] for name, (total, count) in sums.items()}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            if math.isnan(value):
                continue
            total, count = self.sums.get(name, [0.0, 0])
            self.sums[name] = [total + value, count + 1]

    def end_epoch(self) -> dict[str, float]:
        """Return the means by column, such as `loss_epoch`, and begin the next
        epoch."""
        means = {
            f"{name}{_MEAN}": total / count
            for name, (total, count) in self.sums.items()
        }
        self.sums = {}
        return means


def is_mean(column: str, columns: Container[str]) -> bool:
    """Return whether a column of metrics.csv has the means of another one over an
    epoch."""
    return column.endswith(_MEAN) and column.removesuffix(_MEAN) in columns


def by_name(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values in a summary by the names that `objective` and runs.py take.

    They are the names in `metrics`, and `last_NAME` for those in `last_metrics`.
    """
    metrics = summary.get("metrics")
    last = summary.get("last_metrics")
    named: dict[str, Any] = dict(metrics) if isinstance(metrics, Mapping) else {}
    if isinstance(last, Mapping):
        named |= {f"last_{name}": value for name, value in last.items()}
    return named
