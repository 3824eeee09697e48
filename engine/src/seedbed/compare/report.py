"""The report of a comparison: lines for a terminal, and a picture."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from seedbed import compare
from seedbed.compare import Comparison, Record, causes, plot
from seedbed.compare.stages import stage_of
from seedbed.errors import InputError, printable

SHOWN_STEPS = 6


def picture(a: Record, b: Record) -> Path:
    """Return the name of the picture where nobody gave one."""
    return Path(plot.file_name(a, b))


def show(a: Record, b: Record, result: Comparison, out: Path) -> None:
    """Draw the picture of a comparison and print its report."""
    plot.draw(a, b, result, out)
    for line in report(a, b, result):
        print(printable(line))


def outside(out: Path, *runs: Path) -> Path:
    """Return `out` if it is a PNG file's name outside the run folders, else raise InputError."""
    for run in runs:
        if out.resolve().is_relative_to(run.resolve()):
            raise InputError(
                f"--out: expected a file outside the run folders, got {out} in {run}; name another"
            )
    if out.suffix != ".png":
        raise InputError(f"--out: expected a name that ends in .png, got {out}; name another")
    return out


def report(a: Record, b: Record, result: Comparison) -> Iterator[str]:
    """Yield the lines to print."""
    yield from (f"{side} {name(run)}" for side, run in (("A", a), ("B", b)))
    yield from (f"note: {note}" for note in result.notes)
    found = causes.changes(a, b)
    yield ""
    if result.difference is None:
        stages = ", ".join(stage_of(stage).name for stage in result.stages)
        yield f"The same bits at every step compared ({result.steps:,}): {stages}"
        if found:
            yield "\nDifferences that changed no bit"
        found = causes.others(found)
    else:
        first, *more = causes.explain(result.difference, found)
        yield f"The runs diverge at {first}"
        yield from more
        found = causes.others(found, causes.rank(result.difference, found))
        if found:
            yield "\nDifferences that are not known to act there"
    if found:
        yield from causes.table(found)
    yield from loss_table(
        compare.losses(a), compare.losses(b), result.difference.step if result.difference else 0
    )
    yield from end_table(a.summary.get("metrics"), b.summary.get("metrics"))


def name(run: Record) -> str:
    """Return a run's folder, what it trained and how far it got."""
    what = " ".join(
        str(run.config[key])
        for key in ("model.name", "data.name", "optimizer.name", "determinism.name")
        if key in run.config
    )
    end = f"{run.summary.get('status')} at step {run.summary.get('steps')}"
    return f"{run.name}: {', '.join(filter(None, (what, end)))}"


def loss_table(a: dict[int, float], b: dict[int, float], around: int) -> Iterator[str]:
    """Yield the training losses of the first logged steps, and of those around a step."""
    steps = sorted(a.keys() & b.keys())
    near = next((place for place, step in enumerate(steps) if step >= around), len(steps))
    places = sorted({*range(SHOWN_STEPS), *range(near - 2, near + SHOWN_STEPS - 2)})
    places = [place for place in places if 0 <= place < len(steps)]
    if not places:
        yield "\nNo step's training loss is in both records"
        return
    yield "\nTraining loss\n" + f"{'step':>8}  {'run A':<12}  {'run B':<12}  difference"
    for before, place in zip([-1, *places], places, strict=False):
        if place > before + 1:
            yield f"{'...':>8}"
        step = steps[place]
        apart = "0" if str(a[step]) == str(b[step]) else f"{b[step] - a[step]:+.3g}"
        yield f"{step:>8}  {a[step]:<12.9g}  {b[step]:<12.9g}  {apart}"
    if places[-1] + 1 < len(steps):
        yield f"{'...':>8}"


def end_table(a: Any, b: Any) -> Iterator[str]:
    """Yield the metrics at the end that are in both summaries; nothing where all are equal."""
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)):
        return
    rows = [
        (name, a[name], b[name])
        for name in a
        if isinstance(a[name], float) and isinstance(b.get(name), float)
    ]
    if any(before != after for _, before, after in rows):
        width = max(len(name) for name, _, _ in rows)
        yield f"\n{'At the end':<{width}}  {'run A':<12}  run B"
        yield from (f"{name:<{width}}  {x:<12.6g}  {y:.6g}" for name, x, y in rows)
