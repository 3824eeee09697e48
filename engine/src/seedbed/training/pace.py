"""Whether the machine has the cores for a run's threads: measured in a few of its first steps."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_FIRST, _LAST = 3, 12  # steps: those before are warming up, and rehearse
_LEAST_SHARE = 0.6  # of one core, which a step alone on a machine always has


class Pace:
    """Prints one hint where a process with several threads waits for cores.

    It is not meant where steps wait for something else, such as a GPU or other processes.
    """

    def __init__(self, log: Callable[[str], None], first_step: int, is_meant: bool) -> None:
        self._log, self._threads = log, torch.get_num_threads()
        waits = os.environ.get("OMP_WAIT_POLICY", "").upper()
        measured = is_meant and self._threads > 1 and waits != "PASSIVE"
        self._steps = range(first_step + _FIRST, first_step + _LAST + 1) if measured else range(0)
        self._wall = self._cpu = 0.0

    @contextmanager
    def measured(self, step: int) -> Iterator[None]:
        """Measure one of the first steps; after the last of them, print the hint if it is due."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        if step not in self._steps:
            return
        self._wall += time.perf_counter() - wall
        self._cpu += time.process_time() - cpu
        if step == self._steps[-1] and self._cpu < _LEAST_SHARE * self._wall:
            self._log(
                f"hint: {self._threads} threads got {self._cpu / self._wall:.1f} of a core in the "
                "first steps: the machine is busy, and threads wait for each other; try "
                "OMP_WAIT_POLICY=PASSIVE, which changes no bit"
            )
