"""Whether a training gets the cores that its threads ask for."""

import time
from collections.abc import Callable
from typing import Self

import torch

_STEPS = 100
_LEAST_SECONDS = 1.0  # less is too little to tell from
# A loop of two convolutions with two threads on two cores had 97 % alone, and 42 to
# 52 % beside one or two busy processes or another such loop (2026-11-28).
_ENOUGH = 0.7


class CoreShare:
    """The share of the time in its first steps that the training thread ran on a core.

    Enter it for each step. Time in which batches are loaded is not part of it.
    """

    def __init__(self, log: Callable[[str], None], measures: bool) -> None:
        self._log = log
        # The first one has more to do than compute.
        self._left = _STEPS + 1 if measures else 0
        self._seconds = 0.0
        self._running_seconds = 0.0

    def __enter__(self) -> Self:
        if self._left:
            self._seconds -= time.perf_counter()
            self._running_seconds -= time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._left:
            return
        self._seconds += time.perf_counter()
        self._running_seconds += time.thread_time()
        self._left -= 1
        if self._left == _STEPS:
            self._seconds = 0.0
            self._running_seconds = 0.0
        share = self._running_seconds / max(self._seconds, _LEAST_SECONDS)
        if not self._left and self._seconds >= _LEAST_SECONDS and share < _ENOUGH:
            advice = "run fewer processes side by side"
            if torch.get_num_threads() > 1:
                advice += ", or each with determinism.threads=1, which changes bits"
            self._log(
                f"note: in its first {_STEPS} steps, the training thread had a core for"
                f" {share:.0%} of the time; the rest went to other processes on this"
                f" machine, or to waiting in the model: {advice}"
            )
