"""Timing of training programs that take turns, each in its own process.

In a round the programs take many short turns: while one trains, the others are stopped,
so that a temporarily slow machine slows down all of them. Each round starts new
processes, because the speed of two processes can differ even if they run the same
program.
"""

import math
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

# Takes a new folder; returns a command and its environment. The command writes the time
# at which each step ends to STEPS in that folder.
Prepare = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
STEPS = "steps.txt"
WARM_UP_STEPS = 20


class Program(NamedTuple):
    """A program that trains, with a name for the tables."""

    name: str
    prepare: Prepare


class Measured(NamedTuple):
    """One run of a program: mean seconds per step in its turns, and its peak memory."""

    step_seconds: float
    peak_bytes: int


class _Running:
    """A training process that can be stopped and continued, with its loader workers."""

    def __init__(self, program: Program, folder: Path, stack: ExitStack) -> None:
        self.name, self._folder = program.name, folder
        folder.mkdir(parents=True)
        (folder / STEPS).touch()
        command, environment = program.prepare(folder)
        with open(folder / "output.txt", "wb") as out:
            running = ways.started(
                command, env=dict(environment), stdout=out, stderr=out
            )
            self._process = stack.enter_context(running)
        self._turns: list[tuple[float, float]] = []

    def warm_up(self, until: float) -> None:
        while (count := len(self._step_ends())) < WARM_UP_STEPS:
            self._require_alive()
            if time.monotonic() > until:
                raise InputError(
                    f"{self.name}: expected {WARM_UP_STEPS} steps, got {count}"
                )
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
        """Kill the process; return its mean time of steps within a turn, and its peak
        memory."""
        self._require_alive()
        status = Path(f"/proc/{self._process.pid}/status")  # Linux only
        lines = status.read_text().splitlines() if status.exists() else []
        peak = sum(1024 * int(line.split()[1]) for line in lines if "VmHWM" in line)
        self.kill()
        ends = self._step_ends()
        turns = ([e for e in ends if low < e < high] for low, high in self._turns)
        counted = [b - a for turn in turns for a, b in pairwise(turn)]
        return Measured(mean(counted), peak)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _step_ends(self) -> list[float]:
        lines = (self._folder / STEPS).read_text().split("\n")
        # the last is empty, or being written
        return [float(line) for line in lines[:-1]]

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _require_alive(self) -> None:
        if self._process.poll() is not None:
            text = (self._folder / "output.txt").read_text(errors="replace")
            raise InputError(
                f"{self.name}: expected it to train, got {text.strip()[-300:]}"
            )


def measure(
    programs: Sequence[Program],
    folder: Path,
    rounds: int,
    turns: int = 12,
    seconds: float = 0.6,
    until: float = math.inf,
) -> list[dict[str, Measured]]:
    """Return the measurements of each round by program; a turn lasts `seconds`.

    A program that fails, or has not warmed up until that time of `time.monotonic`, is
    left out.
    """
    found = []
    for number in range(rounds):
        with ExitStack() as stack:
            places = [folder / f"{number}_{index}" for index in range(len(programs))]
            pairs = zip(programs, places, strict=True)
            started = [_Running(program, place, stack) for program, place in pairs]
            running = []
            for each in started:
                try:
                    each.warm_up(until)
                    running.append(each)
                except InputError as error:
                    print(f"error: {error}", file=sys.stderr, flush=True)
                    each.kill()
            order = random.Random(number)
            for _ in range(turns):
                for each in order.sample(running, len(running)):
                    each.take_turn(seconds)
            found.append({each.name: each.end() for each in running})
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    return found


def ratio(values: Sequence[float]) -> str:
    """Return the median and the range of values, or a single value."""
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"
