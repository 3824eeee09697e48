"""Whether a training gets the cores that its threads ask for."""

import time
from collections.abc import Callable
from typing import Self

import torch

_STEPS = 100
_SECONDS = 3.0  # slow steps need not be as many: a short run is to learn it, too
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
        self._measures = measures
        self._steps = -1  # the first one has more to do than compute
        self._seconds = 0.0
        self._running_seconds = 0.0

    def __enter__(self) -> Self:
        if self._measures:
            self._seconds -= time.perf_counter()
            self._running_seconds -= time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        if not self._measures:
            return
        self._seconds += time.perf_counter()
        self._running_seconds += time.thread_time()
        self._steps += 1
        if not self._steps:
            self._seconds = 0.0
            self._running_seconds = 0.0
        if self._steps == _STEPS or self._seconds >= _SECONDS:
            self._measures = False
            self._note()

    def _note(self) -> None:
        share = self._running_seconds / max(self._seconds, _LEAST_SECONDS)
        if self._seconds < _LEAST_SECONDS or share >= _ENOUGH:
            return
        advice = "run fewer processes side by side"
        if torch.get_num_threads() > 1:
            advice += ", or each with determinism.threads=1, which changes bits"
        self._log(
            f"note: in its first {self._steps} steps, the training thread had a core"
            f" for {share:.0%} of the time; the rest went to other processes on this"
            f" machine, or to waiting in the model: {advice}"
        )
