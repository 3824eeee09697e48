"""What probing found, as a table for the terminal, for a spreadsheet and for a page."""

import csv
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from typing import IO

import torch

from seedbed.operations.substitutes import substitute_for
from seedbed.probe.probe import Finding, Trial
from seedbed.worker import environment

COLUMNS = ("operation", "device", "fast", "strict", "slowdown", "note", "instead")
_PRESET_FIELDS = ("raised", "raised_in", "differs_in", "largest_difference", "median_seconds")
CSV_FIELDS = (
    *("operation", "device", "unavailable", "instead"),
    *("slowdown", "slowdown_lower_quartile", "slowdown_upper_quartile"),
    *(f"{preset}_{name}" for preset in ("fast", "strict") for name in _PRESET_FIELDS),
)
LEGEND = """\
`fast` and `strict` are the presets of configs/determinism/, with the threads that they ask for.

- `repeats`: outputs and gradients had the same bits in every run.
- `differs`: they had not. The pass that differed first, and the largest absolute difference.
- `raises`: PyTorch refuses the operation with the error in the note; `instead` is a replacement.
- `slowdown`: the time under `strict` divided by the time under `fast`, in pairs of runs: median and
  quartiles. The quartiles are far apart if a run is short or the machine is busy.

`repeats` is what was observed in these runs, in one process. It is not a guarantee."""


def cells(finding: Finding) -> tuple[str, ...]:
    """Return a row of the table as text, in the order of `COLUMNS`."""
    verdicts = (verdict(finding, finding.fast), verdict(finding, finding.strict))
    slowdown = "{:.2f} ({:.2f} to {:.2f})".format(*finding.slowdown) if finding.slowdown else ""
    return (finding.operation, finding.device, *verdicts, slowdown, note(finding), instead(finding))


def verdict(finding: Finding, trial: Trial) -> str:
    """Say in a few words what the runs under one preset gave."""
    if finding.unavailable:
        return "not available"
    if trial.raised:
        return f"raises in {trial.raised_in}"
    if trial.differs_in:
        return f"differs in {trial.differs_in}, {trial.largest_difference:.1e}"
    return "repeats"


def note(finding: Finding) -> str:
    """Return why an operation is not available, or what it raised."""
    message = finding.unavailable or finding.fast.raised or finding.strict.raised
    # PyTorch's sentence goes on with advice that is the same for every operation.
    return message.split(", but you set")[0].split(". ")[0]


def instead(finding: Finding) -> str:
    """Return the substitute for an operation that strict refuses, or "" where none is known."""
    return substitute_for(finding.strict.raised) or "" if finding.strict.raised else ""


def summary(findings: Iterable[Finding]) -> list[str]:
    """Count the verdicts, a line each."""
    counts = Counter(
        (f.device, *(verdict(f, trial).split(" in ")[0] for trial in (f.fast, f.strict)))
        for f in findings
    )
    return [
        f"{n:3} on {device}: "
        f"{fast if fast == strict else f'{fast} under fast, {strict} under strict'}"
        for (device, fast, strict), n in counts.items()
    ]


def measured_on() -> str:
    """Name the machine, the versions and the day, for figures to be read with."""
    cpu, versions = environment.cpu(), environment.versions()
    gpus = [environment.gpu(index) for index in range(torch.cuda.device_count())]
    drivers = environment.gpu_versions() if gpus else {}
    parts = [
        f"{cpu['model']} ({cpu['capability']}), {cpu['cores']} cores",
        *(f"{gpu['name']}, driver {drivers['driver']}" for gpu in gpus),
        f"Python {versions['python']}",
        f"torch {torch.__version__}",
        str(date.today()),
    ]
    return ", ".join(parts)


def write_csv(file: IO[str], findings: Iterable[Finding]) -> None:
    """Write a row for each finding, with figures at full precision."""
    writer = csv.writer(file)
    writer.writerow(CSV_FIELDS)
    for f in findings:
        trials = (*_figures(f.fast), *_figures(f.strict))
        slowdown = f.slowdown or (None,) * 3
        writer.writerow((f.operation, f.device, f.unavailable, instead(f), *slowdown, *trials))


def _figures(trial: Trial) -> tuple[object, ...]:
    seconds = statistics.median(trial.seconds) if trial.seconds else None
    return (trial.raised, trial.raised_in, trial.differs_in, trial.largest_difference, seconds)


def write_markdown(file: IO[str], findings: Sequence[Finding], command: str) -> None:
    """Write a page: what was measured, on what, and the table."""
    lines = [
        "# Which operations are deterministic, and what determinism costs",
        "",
        f"`{command}`",
        "",
        f"Measured on: {measured_on()}.",
        "",
        LEGEND,
        "",
        *(f"- {line.strip()}" for line in summary(findings)),
        "",
        _row(COLUMNS),
        _row("---" for _ in COLUMNS),
        *(_row(cells(finding)) for finding in findings),
    ]
    file.write("\n".join(lines) + "\n")


def _row(values: Iterable[str]) -> str:
    return f"| {' | '.join(value.replace('|', chr(92) + '|') for value in values)} |"
