"""Metrics of torchmetrics over a whole set: the state of each batch, put together in their order.

Each batch has a state of its own, so what is computed of all of them does not depend on which
process had which batch. They are put together as torchmetrics does it for processes.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from seedbed.config import build
from seedbed.errors import InputError, one_line

State = list[Tensor]  # of one batch, in the order of the metric's states


class Metrics:
    """The metrics of a run by name."""

    def __init__(self, metrics: Mapping[str, Any] | None = None) -> None:
        self._metrics = dict(metrics or {})

    @property
    def names(self) -> Sequence[str]:
        """Return what they are called in metrics.csv."""
        return list(self._metrics)

    def higher_is_better(self, name: str) -> bool | None:
        """Return what a metric says of itself; None if it says nothing."""
        found = getattr(self._metrics.get(name), "higher_is_better", None)
        return None if found is None else bool(found)

    def of_batch(self, outputs: Any, targets: Any, device: torch.device) -> dict[str, State]:
        """Return the state of each metric after one batch, on the CPU.

        Raises:
            InputError: a metric takes no such outputs or targets.
        """
        found = {}
        for name, metric in self._metrics.items():
            metric.to(device).reset()
            try:
                metric.update(outputs, targets)
            except Exception as error:  # whatever a library provokes
                raise InputError(
                    f"metrics.{name}: expected outputs and targets that {type(metric).__name__} "
                    f"takes, got others ({one_line(error)}); let "
                    "validation_step return them as 'outputs' and 'targets'"
                ) from error
            # Copies: a state may be the outputs themselves, which a model may use again.
            found[name] = [tensor.to("cpu", copy=True) for tensor in _flat(metric.metric_state)]
        return found

    def of_all(self, states: Mapping[str, Sequence[State]]) -> dict[str, float]:
        """Return the value of each metric over batches whose states are given in order.

        Raises:
            InputError: it is no number.
        """
        return {name: self._value(name, states[name]) for name in self._metrics}

    def _value(self, name: str, states: Sequence[State]) -> float:
        metric = self._metrics[name]
        metric.to("cpu").reset()
        first = iter(states[0])
        for attribute, default in metric.metric_state.items():
            setattr(metric, attribute, [next(first)] if isinstance(default, list) else next(first))
        metric.dist_sync_fn.columns = zip(*states, strict=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that `update` was not called
            value = metric.compute()
        if not isinstance(value, Tensor) or value.numel() != 1:
            got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value)
            raise InputError(
                f"metrics.{name}: expected a number from {type(metric).__name__}.compute, got "
                f"{got}; choose its mean, such as average: macro"
            )
        return float(value)


class Gather:
    """What a metric asks for the states of others, as if each batch had been a process."""

    def __init__(self) -> None:
        self.columns: Iterator[tuple[Tensor, ...]] = iter(())

    def __call__(self, _: Tensor, group: Any = None) -> list[Tensor]:
        """Return the next state of all batches."""
        return list(next(self.columns))


def of_settings(specs: Mapping[str, Any]) -> Metrics:
    """Build the metrics that the section `metrics` describes.

    Raises:
        InputError: one of them is none of torchmetrics.
    """
    found = {}
    for name, spec in specs.items():
        if not isinstance(spec, Mapping):
            raise InputError(
                f"metrics.{name}: expected a mapping with a _target_, got {spec}; see "
                "docs/methods.md"
            )
        gather = {"dist_sync_fn": Gather(), "distributed_available_fn": _always}
        found[name] = build.build({**spec, **gather}, f"metrics.{name}")
        if not all(hasattr(found[name], each) for each in ("update", "compute", "metric_state")):
            raise InputError(
                f"metrics.{name}: expected a class of torchmetrics, got "
                f"{type(found[name]).__name__}; write Method.compute for others"
            )
    return Metrics(found)


def _always() -> bool:
    return True


def _flat(state: Mapping[str, Any]) -> State:
    """Return the tensors of a state; of a list, one."""
    return [
        torch.cat([part.reshape(1) if part.dim() == 0 else part for part in value])
        if isinstance(value, list)
        else value
        for value in state.values()
    ]
