"""How long training takes: programs beside each other, each in its own process.

In a round the programs take short turns, over and over: while one trains, the others are stopped. A
machine that is slower for a while is slower for all of them. Another round has other processes,
because two that do the same can differ, too.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from seedbed.errors import InputError

# Takes a folder of its own, in which it may write; returns a command and its environment. The
# command writes a line into `STEPS` there when a step ends, the time by `time.monotonic`, and may
# write what else it found into `FOUND`, as JSON.
Prepare = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
STEPS, FOUND = "steps.txt", "found.json"
_OUTPUT, _WATCHED = "output.txt", "stopwatch.json"
_STOPWATCH = str(Path(__file__).with_name("benchmark_stopwatch.py"))
_PATIENCE_SECONDS = 60  # for a program that is asked to end


@dataclass(frozen=True)
class Program:
    """Something that trains."""

    name: str
    prepare: Prepare


@dataclass(frozen=True)
class Turns:
    """How often programs take turns, and how long a turn is."""

    count: int = 12
    seconds: float = 0.6
    warm_up_steps: int = 20  # before the first turn, alone


@dataclass(frozen=True)
class Measured:
    """One run of a program.

    Attributes:
        first_step_seconds: from the start of the process to the end of its first step.
        step_seconds: of each step that counts.
        seconds: from the start of the process to its end.
        peak_bytes: most memory that the process held at a time, or a process that it waited for.
        record_bytes: what it left in its folder.
        found: whatever else the program wrote down.
    """

    first_step_seconds: float
    step_seconds: Sequence[float]
    seconds: float
    peak_bytes: int
    record_bytes: int
    found: Mapping[str, float]

    @property
    def mean_step_seconds(self) -> float:
        """Return the mean seconds a step, what happens once in a while included."""
        return mean(self.step_seconds)

    @property
    def median_step_seconds(self) -> float:
        """Return the median: without what happens once in a while, such as a checkpoint."""
        return median(self.step_seconds)


class Spread(NamedTuple):
    """The median of a few values, and their range."""

    median: float
    low: float
    high: float


Round = Mapping[str, Measured]


class _Running:
    """A process that trains, and can be stopped and let go on."""

    def __init__(self, program: Program, folder: Path) -> None:
        self.name, self.folder = program.name, folder
        folder.mkdir(parents=True)
        (folder / STEPS).touch()
        command, environment = program.prepare(folder)
        watched = (sys.executable, "-I", "-S", _STOPWATCH, str(folder / _WATCHED), *command)
        with open(folder / _OUTPUT, "wb") as output:
            self._process = subprocess.Popen(
                watched,
                env=dict(environment),
                stdout=output,
                stderr=output,
                start_new_session=True,  # loader workers stop and resume it
            )
        self._turns: list[tuple[float, float]] = []

    def warm_up(self, steps: int) -> None:
        """Wait until so many steps are done, then stop it."""
        while len(self._step_ends()) < steps:
            self._require_alive()
            time.sleep(0.02)
        self._signal(signal.SIGSTOP)

    def take_turn(self, seconds: float) -> None:
        """Let it train for a while."""
        self._require_alive()
        started = time.monotonic()
        self._signal(signal.SIGCONT)
        time.sleep(seconds)
        self._signal(signal.SIGSTOP)
        self._turns.append((started, time.monotonic()))

    def end(self) -> Measured:
        """Ask it to end; return what was measured in its turns: steps that lie within one."""
        self._require_alive()
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            raise InputError(
                f"{self.name}: expected it to end within {_PATIENCE_SECONDS} s of SIGTERM, got one "
                "that goes on; mend it"
            ) from None
        ends = self._step_ends()
        turns = ([e for e in ends if low < e < high] for low, high in self._turns)
        counted = [b - a for turn in turns for a, b in pairwise(turn)]
        if not counted:
            raise InputError(
                f"{self.name}: expected steps that fit into a turn, got none; take longer turns"
            )
        return self._measured(counted)

    def finish(self, warm_up_steps: int) -> Measured:
        """Wait for its end; return what was measured after so many steps."""
        if self._process.wait() != 0:
            raise self._failure()
        return self._measured([b - a for a, b in pairwise(self._step_ends()[warm_up_steps - 1 :])])

    def kill(self) -> None:
        """End it at once, if it is still there."""
        if self._process.poll() is None:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _measured(self, step_seconds: Sequence[float]) -> Measured:
        watch = json.loads((self.folder / _WATCHED).read_text())
        found = self.folder / FOUND
        first = next((end - watch["started"] for end in self._step_ends()), 0.0)
        return Measured(
            first, step_seconds, watch["seconds"], watch["peak_bytes"], bytes_in(self.folder),
            json.loads(found.read_text()) if found.exists() else {},
        )  # fmt: skip

    def _step_ends(self) -> list[float]:
        lines = (self.folder / STEPS).read_text().split("\n")
        return [float(line) for line in lines[:-1]]  # the last is empty, or being written

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _require_alive(self) -> None:
        if self._process.poll() is not None:
            raise self._failure()

    def _failure(self) -> InputError:
        last = (self.folder / _OUTPUT).read_text(errors="replace").strip().splitlines()[-1:]
        return InputError(f"{self.name}: expected it to train, got {''.join(last)}; mend it")


def rounds(programs: Sequence[Program], count: int, turns: Turns, folder: Path) -> Iterator[Round]:
    """Yield what was measured in so many rounds.

    Raises:
        InputError: a program failed, or came to its end.
    """
    for number in range(count):
        yield _round(programs, turns, folder / str(number))


def _round(programs: Sequence[Program], turns: Turns, folder: Path) -> Round:
    """Start all programs, one by one, and let them take turns, in another order each time."""
    with ExitStack() as stack:
        running = []
        for number, program in enumerate(programs):
            running.append(_Running(program, folder / str(number)))
            stack.callback(running[-1].kill)
            running[-1].warm_up(turns.warm_up_steps)
        order = random.Random(len(running))
        for _ in range(turns.count):
            for each in order.sample(running, len(running)):
                each.take_turn(turns.seconds)
        return {each.name: each.end() for each in running}


def run(program: Program, folder: Path, warm_up_steps: int = 1) -> Measured:
    """Run a program to its end, in a folder of its own.

    Raises:
        InputError: it failed.
    """
    with ExitStack() as stack:
        running = _Running(program, folder)
        stack.callback(running.kill)
        return running.finish(warm_up_steps)


def bytes_in(folder: Path) -> int:
    """Return the size of all files in a folder, the notes of this module left out."""
    ours = [folder / name for name in (STEPS, FOUND, _OUTPUT, _WATCHED)]
    files = (path for path in folder.rglob("*") if path.is_file() and path not in ours)
    return sum(path.stat().st_size for path in files)


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the range of values."""
    return Spread(median(values), min(values), max(values))


def speed(measured: Sequence[Round], name: str, base: str) -> Spread:
    """Return how many times as fast as `base` a program trains: a ratio for each round."""
    return spread([r[base].mean_step_seconds / r[name].mean_step_seconds for r in measured])


def relative_memory(measured: Sequence[Round], name: str, base: str) -> Spread:
    """Return how many times as much memory as `base` a program needs."""
    return spread([r[name].peak_bytes / r[base].peak_bytes for r in measured])


def ratio_table(
    rounds: Sequence[Mapping[tuple[str, str], float]],
    baseline: str,
    rows: Iterable[str],
    columns: Iterable[str],
) -> list[str]:
    """Return a Markdown table of medians over rounds, and of ratios to a row in the same round.

    Args:
        rounds: milliseconds by (row, column).
        baseline: the row that the others are compared with.
    """
    columns = list(columns)
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in rows:
        cells = [
            f"{median(r[row, column] for r in rounds):.1f} ms "
            f"({median(r[row, column] / r[baseline, column] for r in rounds):.2f})"
            for column in columns
        ]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return lines
