"""What was measured, as tables and as plain numbers."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import benchmark_programs as programs
import timing
from benchmark_sections import ACCURACIES, Section
from timing import Measured, Round, Spread

MEBIBYTE = 1 << 20


@dataclass
class Results:
    """Everything that was measured; what was not is empty."""

    workloads: list[tuple[Section, list[Round]]] = field(default_factory=list)
    knobs: list[tuple[Section, list[Round]]] = field(default_factory=list)
    compiled: list[tuple[Section, list[Round]]] = field(default_factory=list)
    ceilings: dict[str, dict[str, float]] = field(default_factory=dict)
    growth: dict[int, list[Measured]] = field(default_factory=dict)
    first_step_seconds: dict[str, list[float]] = field(default_factory=dict)
    accuracies: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def ratio(value: Spread) -> str:
    """Return a median with its range."""
    return f"{value.median:.2f} ({value.low:.2f} to {value.high:.2f})"


def speeds(section: Section, rounds: Sequence[Round]) -> str:
    """Return the table of a section: time a step, speed and memory beside the base."""
    base = section.base

    def row(name: str) -> Sequence[str]:
        each = [r[name] for r in rounds]
        return (
            name,
            f"{1000 * median(m.mean_step_seconds for m in each):.2f}",
            f"{1000 * median(m.median_step_seconds for m in each):.2f}",
            ratio(timing.speed(rounds, name, base)),
            ratio(timing.relative_memory(rounds, name, base)),
        )

    header = ("program", "ms a step", "median step, ms", f"times as fast as {base}", "memory")
    return table(header, [row(program.name) for program in section.programs])


def knobs(section: Section, rounds: Sequence[Round]) -> str:
    """Return the table of what each setting of strict costs: how much faster it is without."""

    def row(name: str) -> Sequence[str]:
        step = 1000 * median(r[name].mean_step_seconds for r in rounds)
        return (name, f"{step:.2f}", ratio(timing.speed(rounds, name, section.base)))

    rows = [row(program.name) for program in section.programs]
    rows += [(knob, "", "of GPUs alone") for knob in programs.GPU_KNOBS]
    return table(("strict without", "ms a step", "times as fast as strict"), rows)


def starts(section: Section, rounds: Sequence[Round]) -> str:
    """Return the table of start-up: the process's first step, and what a step costs then."""

    def row(name: str) -> Sequence[str]:
        first = [r[name].first_step_seconds for r in rounds]
        step = 1000 * median(r[name].mean_step_seconds for r in rounds)
        speed = timing.speed(rounds, name, section.base)
        return (name, f"{median(first):.1f}", f"{step:.2f}", ratio(speed))

    seconds = "seconds of the process to its first step"
    header = ("program", seconds, "ms a step", f"as fast as {section.base}")
    return table(header, [row(program.name) for program in section.programs])


def first_steps(results: Results) -> str:
    """Return the table of the time from the shell to the end of the first step."""
    rows = [
        (name, f"{spread.median:.1f} ({spread.low:.1f} to {spread.high:.1f})")
        for name, seconds in results.first_step_seconds.items()
        for spread in [timing.spread(seconds)]
    ]
    return table(("program", "seconds"), rows)


def ceilings(results: Results) -> str:
    """Return the table of what the machine could do at best."""
    bases = {section.title: (section, rounds) for section, rounds in results.workloads}

    def row(title: str, found: Mapping[str, float]) -> Sequence[str]:
        ideal = 1000 * found["flops_per_step"] / found["flops_per_second"]
        section, rounds = bases[title]
        bare = 1000 * median(r[section.base].mean_step_seconds for r in rounds)
        gigaflops = (found["flops_per_step"] / 1e9, found["flops_per_second"] / 1e9)
        return (title, *(f"{n:.2f}" for n in (*gigaflops, ideal, bare)), f"{ideal / bare:.2f}")

    header = (
        "workload", "GFLOP a step", "GFLOP/s of matrix products", "ms a step at best",
        "bare loop, ms", "share reached",
    )  # fmt: skip
    return table(header, [row(*item) for item in results.ceilings.items()])


def growth(results: Results) -> str:
    """Return the table of what a run of strict takes, against its number of steps."""

    def row(steps: int, runs: Sequence[Measured]) -> Sequence[str]:
        step = 1000 * median(m.mean_step_seconds for m in runs)
        seconds = median(m.seconds for m in runs)
        peak = median(m.peak_bytes for m in runs) / MEBIBYTE
        return (
            f"{steps:,}", f"{seconds:.1f}", f"{step:.2f}", f"{peak:.0f}",
            f"{median(m.record_bytes for m in runs) / 1024:.0f}",
        )  # fmt: skip

    header = ("steps", "seconds of the process", "ms a step", "peak memory, MiB", "record, KiB")
    return table(header, [row(*item) for item in results.growth.items()])


def accuracies(results: Results) -> str:
    """Return the table of the time from the shell to a test accuracy on all of MNIST."""

    def cells(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
        for accuracy in ACCURACIES:
            first = first_enough(rows, accuracy)
            if first:
                seconds = timing.spread(first["seconds"])
                yield (
                    f"{seconds.median:.0f} s ({seconds.low:.0f} to {seconds.high:.0f}), epochs: "
                    f"{first['epochs']}, accuracy {100 * median(first['accuracy']):.2f} %"
                )
            else:
                yield f"not within {rows[-1]['epochs']} epochs"

    header = ("program", *(f"{100 * accuracy:.0f} %" for accuracy in ACCURACIES))
    return table(header, [(name, *cells(rows)) for name, rows in results.accuracies.items()])


def first_enough(rows: Sequence[Mapping[str, Any]], accuracy: float) -> Mapping[str, Any] | None:
    """Return the first row whose median accuracy is enough."""
    return next((row for row in rows if median(row["accuracy"]) >= accuracy), None)


def numbers(results: Results) -> dict[str, Any]:
    """Return what was measured as plain numbers, round for round."""

    def plain(sections: Sequence[tuple[Section, list[Round]]]) -> list[dict[str, Any]]:
        return [
            {
                "workload": section.title,
                "base": section.base,
                "rounds": [{name: _plain(m) for name, m in each.items()} for each in rounds],
            }
            for section, rounds in sections
        ]

    growth = {steps: [_plain(m) for m in runs] for steps, runs in results.growth.items()}
    return {
        "workloads": plain(results.workloads),
        "settings": plain(results.knobs),
        "compiled": plain(results.compiled),
        "ceilings": results.ceilings,
        "growth": growth,
        "first_step_seconds": results.first_step_seconds,
        "accuracies": results.accuracies,
    }


def _plain(measured: Measured) -> dict[str, float]:
    return {
        "step_seconds": measured.mean_step_seconds,
        "median_step_seconds": measured.median_step_seconds,
        "first_step_seconds": measured.first_step_seconds,
        "seconds": measured.seconds,
        "peak_bytes": measured.peak_bytes,
        "record_bytes": measured.record_bytes,
    }
