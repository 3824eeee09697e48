"""The times at which steps end. A GPU's steps end after the process has queued them."""

import time
from collections import deque
from pathlib import Path

import torch


class Clock:
    """Writes the time at which each step ends to a file, without waiting for a GPU."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "w", buffering=1)  # line-buffered
        self._pending: deque[torch.cuda.Event] = deque()
        self._first: tuple[torch.cuda.Event, float] | None = None

    def __call__(self, device: torch.device) -> None:
        """Note that all of a step has been queued; `device` is that of its loss."""
        if device.type != "cuda":
            print(time.monotonic(), file=self._file)
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        if self._first is None:
            event.synchronize()
            self._first = event, time.monotonic()
        self._pending.append(event)
        first, began = self._first
        while self._pending and self._pending[0].query():
            seconds = first.elapsed_time(self._pending.popleft()) / 1000
            print(began + seconds, file=self._file)
