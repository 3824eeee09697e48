"""Whether the machine has the cores for a run's threads: measured in a few of its first steps."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_FIRST, _LAST = 3, 12  # steps: those before are warming up, and rehearse
_LEAST_SHARE = 0.6  # of one core, which a step alone on a machine always has


class Pace:
    """Prints one hint where a process with several threads waits for cores; then does nothing."""

    def __init__(self, log: Callable[[str], None], first_step: int, is_meant: bool) -> None:
        """Take what prints a line.

        Args:
            first_step: the last step before this process.
            is_meant: False where steps wait for something else, such as a GPU or other processes.
        """
        self._log, self._threads = log, torch.get_num_threads()
        self._steps = range(first_step + _FIRST, first_step + _LAST + 1)
        if not is_meant or self._threads == 1:
            self._steps = range(0)
        self._wall = self._cpu = 0.0

    def measures(self, step: int) -> bool:
        """Return whether a step is to be taken inside of `measured`."""
        return step in self._steps

    @contextmanager
    def measured(self, step: int) -> Iterator[None]:
        """Measure a step; after the last one, print the hint if it is called for."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self._wall += time.perf_counter() - wall
        self._cpu += time.process_time() - cpu
        if step == self._steps[-1] and self._cpu < _LEAST_SHARE * self._wall:
            calm = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"
            sleep = (
                ""
                if calm
                else "OMP_WAIT_POLICY=PASSIVE in the environment, which changes no bit, or "
            )
            self._log(
                f"hint: {self._threads} threads got {self._cpu / self._wall:.1f} of a core in the "
                "first steps: the machine is busy, and threads that wait for each other can take "
                f"many times as long as one; try {sleep}determinism.threads=1, which gives other "
                "bits"
            )
