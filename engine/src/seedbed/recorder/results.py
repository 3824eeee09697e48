"""What a loop of one's own has reached: rows of metrics.csv, and values of summary.json."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import Row

_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_.@/-]{0,39}")
_TAKEN = set(record.METRIC_FIELDS)
_MOST_COLUMNS = 64  # readers refuse long lines


class Results:
    """The newest and the best values of a run.

    Attributes:
        seconds: that the loop took so far.
        resumes: for summary.json, what each resume changed.
    """

    def __init__(
        self, higher_is_better: bool, steps_per_epoch: int | None, before: Mapping[str, Any]
    ) -> None:
        """Begin with what the summary of a record says of the time before."""
        self._higher_is_better = higher_is_better
        self._steps_per_epoch = steps_per_epoch
        self._metric_name = str(before.get("metric_name", "loss"))
        self._last: dict[str, float] = {}
        self._best: float | None = None
        self._own: set[str] = set()  # values that have a column of metrics.csv
        self.seconds = float(before.get("seconds", 0.0))
        self.resumes: list[Any] = list(before.get("resumes", []))

    def read(self, rows: Iterable[Row]) -> None:
        """Take the values of a table that the loop goes on with."""
        for row in rows:
            self._own |= row.keys() - _TAKEN
            if row["phase"] == "train" and row["loss"]:
                self._last["last_train_loss"] = float(row["loss"])
            elif row["phase"] != "train":
                cells = record.values_of(row).items()
                self._note(row["phase"], {name: float(cell) for name, cell in cells})

    def training_row(self, step: int, values: Mapping[str, float], rate: Any) -> dict[str, object]:
        """Return the row of a step.

        Args:
            values: losses and metrics by name; that called `loss` is the one to minimise.
        """
        if "loss" in values:
            self._last["last_train_loss"] = values["loss"]
        return {
            "step": step,
            "epoch": self._epoch(step),
            "phase": "train",
            "learning_rate": "" if rate is None else repr(float(rate)),
            **self._columns_of(values),
        }

    def evaluation_row(
        self, phase: str, step: int, loss: Any, metrics: Mapping[str, Any]
    ) -> dict[str, object]:
        """Return the row of an evaluation, and keep its values for the summary.

        Raises:
            InputError: one is no number.
        """
        given = metrics if loss is None else {"loss": loss, **metrics}
        values = {name: _number(name, value) for name, value in given.items()}
        if metrics and self._metric_name == "loss":
            self._metric_name, self._best = next(iter(metrics)), None
        self._note(phase, values)
        return {
            "step": step,
            "epoch": self._epoch(step),
            "phase": phase,
            **self._columns_of(values),
        }

    def summary(self, steps: int) -> dict[str, Any]:
        """Return the values for summary.json."""
        metrics = dict(self._last)
        if self._best is not None:
            metrics[f"best_validation_{self._metric_name}"] = self._best
        return {
            "task": None,
            "metric_name": self._metric_name,
            "higher_is_better": self._is_higher_better(),
            "steps": steps,
            "metrics": metrics,
            "seconds": self.seconds,
            "resumes": self.resumes,
        }

    def _note(self, phase: str, values: Mapping[str, float]) -> None:
        self._last |= {f"{phase}_{name}": value for name, value in values.items()}
        value = values.get(self._metric_name, math.nan)
        if phase == "validation" and not math.isnan(value):
            better = max if self._is_higher_better() else min
            self._best = value if self._best is None else better(self._best, value)

    def _is_higher_better(self) -> bool:
        return self._higher_is_better and self._metric_name != "loss"

    def _columns_of(self, values: Mapping[str, float]) -> dict[str, object]:
        """Return the cells of values that have a column of their name: `loss`, and the first 64."""
        for name in values:
            if len(self._own) < _MOST_COLUMNS and _COLUMN.fullmatch(name) and name not in _TAKEN:
                self._own.add(name)
        return {name: repr(v) for name, v in values.items() if name == "loss" or name in self._own}

    def _epoch(self, step: int) -> str:
        return repr(step / self._steps_per_epoch) if self._steps_per_epoch else ""


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name}: expected a number, got {type(value).__name__}; give its mean"
        ) from None
