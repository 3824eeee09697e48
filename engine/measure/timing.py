"""How long training takes: programs that take turns, each in its own process.

In a round the programs take short turns, over and over: while one trains, the others are stopped. A
machine that is slower for a while is slower for all of them. Another round has other processes,
because two that do the same can differ, too.
"""

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

import ways

from seedbed.errors import InputError

# Takes a new folder; returns a command, which notes there in STEPS when a step ended, and its
# environment.
Prepare = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
STEPS = "steps.txt"
WARM_UP_STEPS = 20


class Program(NamedTuple):
    """Something that trains."""

    name: str
    prepare: Prepare


class Measured(NamedTuple):
    """One run of a program: seconds of a step in its turns, and the most memory that it held."""

    step_seconds: float
    peak_bytes: int


class _Running:
    """A process that trains, and can be stopped and continued with its loader workers."""

    def __init__(self, program: Program, folder: Path, stack: ExitStack) -> None:
        self.name, self._folder = program.name, folder
        folder.mkdir(parents=True)
        (folder / STEPS).touch()
        command, environment = program.prepare(folder)
        with open(folder / "output.txt", "wb") as out:
            running = ways.started(command, env=dict(environment), stdout=out, stderr=out)
            self._process = stack.enter_context(running)
        self._turns: list[tuple[float, float]] = []

    def warm_up(self) -> None:
        while len(self._step_ends()) < WARM_UP_STEPS:
            self._require_alive()
            time.sleep(0.02)
        self._signal(signal.SIGSTOP)

    def take_turn(self, seconds: float) -> None:
        self._require_alive()
        started = time.monotonic()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self._turns.append((started, time.monotonic()))

    def end(self) -> Measured:
        """Kill it; return the mean seconds of the steps that lie within a turn."""
        self._require_alive()
        status = Path(f"/proc/{self._process.pid}/status")  # of Linux
        lines = status.read_text().splitlines() if status.exists() else []
        peak = sum(1024 * int(line.split()[1]) for line in lines if "VmHWM" in line)
        self._signal(signal.SIGKILL)
        self._process.wait()
        ends = self._step_ends()
        turns = ([e for e in ends if low < e < high] for low, high in self._turns)
        counted = [b - a for turn in turns for a, b in pairwise(turn)]
        return Measured(mean(counted), peak)

    def _step_ends(self) -> list[float]:
        lines = (self._folder / STEPS).read_text().split("\n")
        return [float(line) for line in lines[:-1]]  # the last is empty, or being written

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _require_alive(self) -> None:
        if self._process.poll() is not None:
            text = (self._folder / "output.txt").read_text(errors="replace")
            raise InputError(f"{self.name}: expected it to train, got {text.strip()[-300:]}")


def measure(
    programs: Sequence[Program], folder: Path, rounds: int, turns: int = 12, seconds: float = 0.6
) -> list[dict[str, Measured]]:
    """Return what was measured in each round, in turns of some seconds, by the programs' names."""
    found = []
    for number in range(rounds):
        with ExitStack() as stack:
            running = []
            for index, program in enumerate(programs):
                running.append(_Running(program, folder / f"{number}_{index}", stack))
                running[-1].warm_up()
            order = random.Random(number)
            for _ in range(turns):
                for each in order.sample(running, len(running)):
                    each.take_turn(seconds)
            found.append({each.name: each.end() for each in running})
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def ratio(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
