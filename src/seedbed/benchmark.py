"""How long training takes: programs beside each other, in rounds, each in its own process.

In every round each program runs once, in another order each time, and is compared with the others
of the same round: a machine that is slower for a while is slower for all of them.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from seedbed.errors import InputError

# Takes a folder of its own, in which it may write; returns a command and its environment. The
# command may write `STEPS` there: {"step_ends": [...], ...}, by `time.monotonic`, one a step.
Prepare = Callable[[Path], tuple[Sequence[str], Mapping[str, str]]]
STEPS = "steps.json"
_OUTPUT, _WATCHED = "output.txt", "stopwatch.json"
_STOPWATCH = str(Path(__file__).with_name("benchmark_stopwatch.py"))


@dataclass(frozen=True)
class Program:
    """Something that trains."""

    name: str
    prepare: Prepare


@dataclass(frozen=True)
class Measured:
    """One run of a program.

    Attributes:
        step_ends: seconds from the start of the process to the end of each step.
        seconds: from the start of the process to its end.
        peak_bytes: most memory that the process held at a time, or a process that it waited for.
        record_bytes: what it left in its folder.
        found: whatever else the program wrote down.
    """

    step_ends: tuple[float, ...]
    seconds: float
    peak_bytes: int
    record_bytes: int
    found: Mapping[str, float]

    def step_seconds(self, warm_up: int) -> float:
        """Return the mean seconds a step after the first `warm_up`, all between them included."""
        return (self.step_ends[-1] - self.step_ends[warm_up - 1]) / (len(self.step_ends) - warm_up)

    def median_step_seconds(self, warm_up: int) -> float:
        """Return the median: without what happens once in a while, such as a checkpoint."""
        ends = self.step_ends[warm_up - 1 :]
        return median(after - before for before, after in pairwise(ends))


class Spread(NamedTuple):
    """The median of a few values, and their range."""

    median: float
    low: float
    high: float


Round = Mapping[str, Measured]


def rounds(programs: Sequence[Program], count: int, folder: Path) -> Iterator[Round]:
    """Run every program once a round, the rounds beginning with another program each."""
    for number in range(count):
        first = number % len(programs)
        order = [*programs[first:], *programs[:first]]
        place = folder / str(number)
        runs = {p.name: run(p, place / str(programs.index(p))) for p in order}
        yield {program.name: runs[program.name] for program in programs}


def run(program: Program, folder: Path) -> Measured:
    """Run a program once, in a folder of its own.

    Raises:
        InputError: it failed.
    """
    folder.mkdir(parents=True)
    command, environment = program.prepare(folder)
    watched = (sys.executable, "-I", "-S", _STOPWATCH, str(folder / _WATCHED), *command)
    with open(folder / _OUTPUT, "wb") as output:
        done = subprocess.run(
            watched, env=dict(environment), stdout=output, stderr=output, check=False
        )
    if done.returncode != 0:
        last = (folder / _OUTPUT).read_text(errors="replace").strip().splitlines()[-1:]
        raise InputError(f"{program.name}: expected it to train, got {''.join(last)}; mend it")
    watch = json.loads((folder / _WATCHED).read_text())
    notes = folder / STEPS
    found = json.loads(notes.read_text()) if notes.exists() else {}
    step_ends = tuple(end - watch["started"] for end in found.pop("step_ends", ()))
    return Measured(step_ends, watch["seconds"], watch["peak_bytes"], bytes_in(folder), found)


def bytes_in(folder: Path) -> int:
    """Return the size of all files in a folder, the notes of this module left out."""
    ours = [folder / name for name in (STEPS, _OUTPUT, _WATCHED)]
    files = (path for path in folder.rglob("*") if path.is_file() and path not in ours)
    return sum(path.stat().st_size for path in files)


def spread(values: Sequence[float]) -> Spread:
    """Return the median and the range of values."""
    return Spread(median(values), min(values), max(values))


def speed(measured: Sequence[Round], name: str, base: str, warm_up: int) -> Spread:
    """Return how many times as fast as `base` a program trains: a ratio for each round."""
    return spread([r[base].step_seconds(warm_up) / r[name].step_seconds(warm_up) for r in measured])


def relative_memory(measured: Sequence[Round], name: str, base: str) -> Spread:
    """Return how many times as much memory as `base` a program needs."""
    return spread([r[name].peak_bytes / r[base].peak_bytes for r in measured])
