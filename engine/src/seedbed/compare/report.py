"""The report of a comparison: lines for a terminal, or one JSON object."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from seedbed import names
from seedbed.compare import versions
from seedbed.compare.changes import changes, leading
from seedbed.compare.difference import Comparison, Difference, Record
from seedbed.compare.stages import stage_of
from seedbed.errors import printable
from seedbed.record import values_of
from seedbed.record.change import Change

_MOST_CHARACTERS = 44


def report(a: Record, b: Record, result: Comparison) -> Iterator[str]:
    """Yield the lines to print on two runs."""
    yield from (f"{side} {_name(run)}" for side, run in (("A", a), ("B", b)))
    yield from (f"note: {note}" for note in result.notes)
    yield ""
    if result.difference is None:
        yield f"The same bits at every step compared ({result.steps:,}): {compared(result)}"
    else:
        first, *more = describe(result.difference)
        yield f"The runs diverge at {first}"
        yield from more
    yield from differing(a, b, same=result.difference is None)
    if result.difference is not None:
        yield from metrics_table(metrics(a), metrics(b))


def _name(run: Record) -> str:
    """Return a run's folder, what it trained and how far it got."""
    keys = ("model.name", "data.name", "optimizer.name", "determinism.name")
    what = " ".join(str(run.config[key]) for key in keys if key in run.config)
    end = f"{run.summary.get('status')} at step {run.summary.get('steps')}"
    return f"{run.name}: {', '.join(filter(None, (what, end)))}"


def compared(result: Comparison) -> str:
    """Return what was compared, in words."""
    found = [stage_of(stage).name for stage in result.stages if stage in names.STAGES]
    logged = [stage.partition("_")[0] for stage in result.stages if stage not in names.STAGES]
    phases = [phase for phase in ("train", "validation", "test") if phase in logged]
    found += [f"metrics ({', '.join(phases)})"] if phases else []
    found += [stage_of(stage).name for stage in result.stages if stage.startswith("final_")]
    return ", ".join(found)


def describe(difference: Difference) -> Iterator[str]:
    """Yield a few lines: where two records diverge, and what that means."""
    stage = stage_of(difference.stage)
    yield f"step {difference.step}: {stage.name} ({stage.phase})"
    yield f"  A {difference.a or '(none)'}"
    yield f"  B {difference.b or '(none)'}"
    yield f"  {_before(difference)}"
    yield f"  look at: {stage.look}"
    if not difference.located:
        yield (
            "  not every step before it has fingerprints in both, so the difference may be older, "
            "and of another stage; run both with fingerprint.every_steps=1 to know"
        )


def _before(difference: Difference) -> str:
    """Return what was compared before a difference, and is equal."""
    through, step = difference.equal_through, difference.step
    same = [] if through is None else [f"all steps compared up to {through}"]
    if difference.equal_stages:
        equal = ", ".join(stage_of(name).name for name in difference.equal_stages)
        same.append(f"at step {step} {equal}")
    if same:
        return f"equal before it: {'; '.join(same)}"
    if step == 1 and difference.stage == names.STAGES[0]:
        return "nothing comes before it: it is the first stage of the run's first step"
    return "nothing before it was compared"


def differing(a: Record, b: Record, same: bool) -> Iterator[str]:
    """Yield lines on what differs between two records: settings, environment, code."""
    found = leading(changes(a, b))
    if same:
        shown = [each for each in found if each.alters_bits or each.kind != "code"]
        if shown:
            yield "\nDifferences that changed no bit"
            yield from table(shown)
        return
    serious = [each for each in found if each.alters_bits]
    if not serious:
        yield (
            "\nNothing recorded explains it: a nondeterministic operation (determinism=strict "
            "refuses those), or a random number that belongs to no stream"
        )
    elif shown := [each for each in serious if each.kind != "code"]:
        yield "\nWhat differs and can change bits"
        yield from table(shown)
    harmless = [each.key for each in found if not each.alters_bits and each.kind != "code"]
    if harmless:
        yield f"Also different, but known to change no bit: {_short(', '.join(harmless), 400)}"
    if any(each.kind == "code" for each in serious):
        yield from versions.describe(a, b)


def table(found: Iterable[Change]) -> Iterator[str]:
    """Yield changes side by side, aligned."""
    cells = [
        ("", "A", "B"),
        *((_short(c.key, 160), _short(c.before), _short(c.now)) for c in found),
    ]
    widths = [max(len(row[column]) for row in cells) for column in (0, 1)]
    for key, a, b in cells:
        yield f"  {key:{widths[0]}}  {a:{widths[1]}}  {b}"


def _short(value: object, most: int = _MOST_CHARACTERS) -> str:
    text = printable("-" if value is None else " ".join(str(value).split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def metrics(of: Record) -> dict[str, float]:
    """Return the numbers among the metrics that a record's summary states."""
    values = of.summary.get("metrics")
    values = values if isinstance(values, Mapping) else {}
    return {str(key): float(v) for key, v in values.items() if isinstance(v, float | int)}


def last_values(a: Record, b: Record) -> tuple[int, dict[str, float], dict[str, float]]:
    """Return the last training step that both logged, and what they logged there."""
    logged = [{int(r["step"]): r for r in of.metrics if r["phase"] == "train"} for of in (a, b)]
    step = max(logged[0].keys() & logged[1].keys(), default=0)
    values = [values_of(rows[step]) if step else {} for rows in logged]
    first, second = ({name: float(cell) for name, cell in each.items()} for each in values)
    return step, first, second


def metrics_table(
    a: Mapping[str, float],
    b: Mapping[str, float],
    tolerances: Mapping[str, float] | None = None,
    title: str = "At the end",
) -> Iterator[str]:
    """Yield the metrics that both have, their difference, and whether it is tolerated.

    Args:
        tolerances: the largest difference that is tolerated, by metric.
    """
    shared = [key for key in a if key in b]
    if not shared:
        return
    width = max(len(printable(key)) for key in shared)
    yield f"\n{title:<{max(width, 10)}}  {'A':<12}  {'B':<12}  difference"
    for key in shared:
        apart = b[key] - a[key]
        end = ""
        if tolerances and key in tolerances:
            inside = abs(apart) <= tolerances[key] or str(a[key]) == str(b[key])
            end = f"  {'within' if inside else 'NOT within'} {tolerances[key]:g}"
        shown = "0" if str(a[key]) == str(b[key]) else f"{apart:+.3g}"
        name = printable(key)
        yield f"{name:<{max(width, 10)}}  {a[key]:<12.6g}  {b[key]:<12.6g}  {shown}{end}"


def as_dict(a: Record, b: Record, result: Comparison) -> dict[str, Any]:
    """Return a comparison as `--json` prints it."""
    difference = result.difference
    return {
        "same": difference is None,
        "step": difference and difference.step,
        "stage": difference and difference.stage,
        "stages_compared": result.stages,
        "steps_compared": result.steps,
        "changes": [
            {"key": c.key, "kind": c.kind, "a": c.before, "b": c.now, "alters_bits": c.alters_bits}
            for c in changes(a, b)
        ],
        "metrics": {"a": metrics(a), "b": metrics(b)},
        "notes": result.notes,
    }
