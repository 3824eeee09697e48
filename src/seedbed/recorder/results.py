"""What a loop of one's own has reached: rows of metrics.csv, and values of summary.json."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from seedbed.errors import InputError
from seedbed.record import Row


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
        self.seconds = float(before.get("seconds", 0.0))
        self.resumes: list[Any] = list(before.get("resumes", []))

    def read(self, rows: Iterable[Row]) -> None:
        """Take the values of a table that the loop goes on with."""
        for row in rows:
            if row["phase"] == "train" and row["loss"]:
                self._last["last_train_loss"] = float(row["loss"])
            elif row["phase"] != "train":
                given = {"loss": row["loss"], self._metric_name: row["metric"]}
                self._note(row["phase"], {k: float(v) for k, v in given.items() if v})

    def training_row(
        self, step: int, loss: float | None, metric: Any, rate: Any
    ) -> dict[str, object]:
        """Return the row of a step."""
        if loss is not None:
            self._last["last_train_loss"] = loss
        if metric is not None and self._metric_name == "loss":
            self._metric_name = "metric"  # until an evaluation gives it a name
        return {
            "step": step,
            "epoch": self._epoch(step),
            "phase": "train",
            "loss": "" if loss is None else repr(loss),
            "metric": "" if metric is None else repr(_number("metric", metric)),
            "learning_rate": "" if rate is None else repr(float(rate)),
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
        named = next(iter(metrics), None)
        self._metric_name = named or self._metric_name
        self._note(phase, values)
        return {
            "step": step,
            "epoch": self._epoch(step),
            "phase": phase,
            "loss": "" if loss is None else repr(values["loss"]),
            "metric": "" if named is None else repr(values[named]),
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

    def _epoch(self, step: int) -> str:
        return repr(step / self._steps_per_epoch) if self._steps_per_epoch else ""


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"{name}: expected a number, got {type(value).__name__}; give its mean"
        ) from None
