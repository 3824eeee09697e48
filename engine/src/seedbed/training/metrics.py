"""Metrics of torchmetrics: each is fed all batches of a set, in order, by every process."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from seedbed.config import build
from seedbed.errors import InputError, one_line


def of_settings(specs: Mapping[str, Any]) -> dict[str, Any]:
    """Build the metrics that the section `metrics` describes."""
    metrics = {}
    for name, spec in specs.items():
        if not isinstance(spec, Mapping):
            raise InputError(f"metrics.{name}: expected a mapping with a _target_, got {spec}")
        # Each process has the outputs of all, so there is nothing to add up.
        metric = build.build({**spec, "sync_on_compute": False}, f"metrics.{name}")
        if not all(hasattr(metric, function) for function in ("reset", "update", "compute")):
            raise InputError(
                f"metrics.{name}: expected a class of torchmetrics, got {type(metric).__name__}; "
                "write Method.compute for others"
            )
        metrics[name] = metric
    return metrics


def compute(
    metrics: Mapping[str, Any], batches: Sequence[tuple[Any, Any] | None]
) -> dict[str, float]:
    """Return each metric over outputs and targets of all batches, which lie on the CPU."""
    values = {}
    for name, metric in metrics.items():
        metric.reset()
        try:
            for pair in batches:
                assert pair is not None
                metric.update(*pair)
        except Exception as error:  # whatever a library provokes
            raise InputError(
                f"metrics.{name}: expected outputs and targets that {type(metric).__name__} takes, "
                f"got others ({one_line(error)}); let validation_step return them as 'outputs' and "
                "'targets'"
            ) from error
        value = metric.compute()
        if isinstance(value, Tensor) and value.numel() != 1:
            raise InputError(
                f"metrics.{name}: expected a number from {type(metric).__name__}.compute, got "
                f"shape {tuple(value.shape)}; choose its mean, such as average: macro"
            )
        values[name] = float(value)
    return values
