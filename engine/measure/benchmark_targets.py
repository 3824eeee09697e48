"""What speed, memory and start-up are asked for, and whether they are reached."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import benchmark_programs as programs
import benchmark_report as report
import timing
from benchmark_sections import ACCURACIES, OURS
from timing import Spread

_NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Target:
    """A ratio that shall be reached: `program` so many times as fast as `base`."""

    program: str
    base: str
    workload: str
    at_least: float


CNN, LSTM = programs.CNN_64.name, programs.LSTM.name
TARGETS = (
    Target("strict, no fingerprints", programs.BARE, CNN, 0.97),
    Target("strict, no fingerprints, no augmentation", programs.BARE, CNN, 0.97),
    Target("strict, no fingerprints", programs.BARE, LSTM, 0.97),
    Target("strict", programs.BARE, CNN, 0.93),
    Target("strict, no augmentation", programs.BARE, CNN, 0.93),
    Target("strict", programs.BARE, LSTM, 0.93),
    Target("strict", "fast", CNN, 0.95),
    Target("strict, no fingerprints", "fast", CNN, 0.95),
    Target("strict", "fast", LSTM, 0.95),
    Target("strict", programs.LIGHTNING, CNN, 1.9),
    Target("strict", programs.PLAIN, CNN, 1.5),
    Target("fast", programs.BARE, CNN, 1.25),
    Target("fast, no augmentation", programs.BARE, CNN, 1.25),
    Target("strict, 2 workers", "strict", CNN, 1.0),
    Target("strict", programs.PLAIN, programs.SAMPLES, 0.97),
    Target("strict, 2 workers", f"{programs.PLAIN}, 2 workers", programs.SAMPLES, 0.97),
)


def targets(results: report.Results) -> str:
    """Return the table of what is asked for and what was measured."""
    found = {section.title: (section, rounds) for section, rounds in results.workloads}

    def row(target: Target) -> Sequence[str]:
        name = f"{target.workload}: speed of {target.program} over {target.base}"
        asked = f"at least {target.at_least:.2f}"
        section, rounds = found.get(target.workload, (None, []))
        if section is None or not {target.program, target.base} <= set(rounds[0]):
            return (name, asked, _NOT_MEASURED, "")
        speed = timing.speed(rounds, target.program, target.base)
        reached = "yes" if speed.median >= target.at_least else "no"
        return (name, asked, report.ratio(speed), reached)

    header = ("", "asked for", "measured", "reached")
    return report.table(header, [*map(row, TARGETS), *limits(results)])


def limits(results: report.Results) -> Iterator[Sequence[str]]:
    """Yield the rows of what shall be at most so much: start-up, memory, time to an accuracy."""
    first, other = (results.first_step_seconds.get(n) for n in (OURS, programs.LIGHTNING))
    if first:
        yield _limit("seconds from the shell to the first step", 4.0, timing.spread(first))
    if first and other:
        ratios = [a / b for a, b in zip(first, other, strict=True)]
        yield _limit("... over Lightning's", 0.5, timing.spread(ratios))
    for section, rounds in results.workloads:
        memory = timing.relative_memory(rounds, "strict", section.base)
        yield _limit(f"{section.title}: memory over the {section.base}'s", 1.2, memory)
    ours, theirs = (
        report.first_enough(results.accuracies.get(name, ()), ACCURACIES[-1])
        for name in ("strict", programs.LIGHTNING)
    )
    if ours and theirs:
        pairs = zip(ours["seconds"], theirs["seconds"], strict=True)
        name = f"time to {100 * ACCURACIES[-1]:.0f} % on all of MNIST, over Lightning's"
        yield _limit(name, 0.5, timing.spread([a / b for a, b in pairs]))


def _limit(name: str, at_most: float, value: Spread) -> Sequence[str]:
    reached = "yes" if value.median <= at_most else "no"
    return (name, f"at most {at_most:g}", report.ratio(value), reached)
