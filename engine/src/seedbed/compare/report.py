"""The report on a comparison: lines for a terminal, one JSON object, or a plot."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from seedbed import names, record
from seedbed.compare import Comparison, Difference, Record, stated
from seedbed.compare.stages import stage_of
from seedbed.errors import InputError, printable
from seedbed.record import Change, code, text

_MOST_LINES = 200  # of a diff


def report(
    a: Record, b: Record, result: Comparison, tolerances: Mapping[str, float] = {}
) -> Iterator[str]:
    """Yield the lines of the report on two runs."""
    for side, run in (("A", a), ("B", b)):
        keys = ("model.name", "data.name", "optimizer.name", "determinism.name")
        choices = " ".join(str(run.config[key]) for key in keys if key in run.config)
        steps = run.summary.get("steps")
        end = f"{run.summary.get('status')}" + (
            "" if steps is None else f" at step {steps}"
        )
        # On one line, so that a record from a stranger cannot forge the lines below.
        yield " ".join(
            f"{side} {run.name}: {', '.join(filter(None, (choices, end)))}".split()
        )
    yield from (f"note: {note}" for note in result.notes)
    yield ""
    if result.difference is None:
        called = [
            stage_of(stage).name for stage in result.stages if stage in names.STAGES
        ]
        logged = {
            stage.partition("_")[0]
            for stage in result.stages
            if stage not in names.STAGES
        }
        phases = [phase for phase in ("train", "validation", "test") if phase in logged]
        called += [f"metrics ({', '.join(phases)})"] if phases else []
        called += [
            stage_of(stage).name
            for stage in result.stages
            if stage.startswith("final_")
        ]
        yield (
            f"The same bits at every step compared ({result.steps:,}):"
            f" {', '.join(called)}"
        )
    else:
        first, *more = describe(result.difference)
        yield f"The runs diverge at {first}"
        yield from more
        yield from metrics_table(a, b, tolerances)
    yield from differing(a, b, result.difference)


def describe(difference: Difference) -> Iterator[str]:
    """Yield lines on where two records diverge, what was equal before, and where to
    look."""
    stage = stage_of(difference.stage)
    step = difference.step
    yield f"step {step}: {stage.name} ({stage.phase})"
    yield f"  A {difference.a or '(none)'}"
    yield f"  B {difference.b or '(none)'}"
    through = difference.equal_through
    same = [] if through is None else [f"all steps compared up to {through}"]
    if difference.equal_stages:
        equal = ", ".join(stage_of(name).name for name in difference.equal_stages)
        same.append(f"at step {step} {equal}")
    yield (
        "  equal before it:"
        f" {'; '.join(same) or 'nothing, it is the first step compared'}"
    )
    yield f"  look at: {stage.look}"
    if not difference.located:
        yield (
            "  not every step before it has fingerprints in both, so the difference may"
            " be older, and of another stage; run both with fingerprint.every_steps=1"
            " to know"
        )


def differing(a: Record, b: Record, difference: Difference | None) -> Iterator[str]:
    """Yield lines on what differs between two records: settings, environment, code."""
    changes = record.changes(a.origin, b.origin)
    serious = [change for change in changes if change.alters_bits]
    harmless = [
        change for change in changes if not change.alters_bits and change.kind != "code"
    ]
    if difference is None:
        if serious or harmless:
            yield "\nDifferences that changed no bit"
            yield from table([*serious, *harmless])
        return
    continued = list(under_earlier_settings(a, b, difference))
    yield from continued
    if not serious and not continued:
        yield from _unexplained(a, b)
    if shown := [change for change in serious if change.kind != "code"]:
        yield "\nWhat differs and can change bits"
        yield from table(shown)
    if harmless:
        keys = ", ".join(change.key for change in harmless)
        yield f"Also different, but meant to change no bit: {_short(keys, 400)}"
    changed = [change.key for change in serious if change.kind == "code"]
    yield from _differing_files(a, b, changed)


def _unexplained(a: Record, b: Record) -> Iterator[str]:
    """Yield lines on what may have made two runs differ if no record shows it."""
    yield (
        "\nNothing recorded explains it: a nondeterministic operation"
        " (determinism=strict refuses those), a random number that belongs to no"
        " stream, or state that a resumed run or a loader worker lacks"
        " (trainer.replay_every_steps=1 looks for it)"
    )
    for side, recorded in (("A", a), ("B", b)):
        if recorded.summary.get("resumes"):
            yield f"{side} was resumed: its summary.json says after which steps"


def _differing_files(a: Record, b: Record, changed: Sequence[str]) -> Iterator[str]:
    """Yield the lines that differ in changed files of code, and notes on records that
    do not have these."""
    if lines := list(code.diff(a.origin, b.origin, changed)):
        yield "\nWhat differs in the files that the runs imported"
        yield from lines[:_MOST_LINES]
        if len(lines) > _MOST_LINES:
            yield f"... ({len(lines) - _MOST_LINES:,} more lines)"
    for side, recorded in (("A", a), ("B", b)) if changed else ():
        if recorded.origin.archive is None:
            yield f"note: run {side} keeps no code ({code.ARCHIVE})"
        elif (name := recorded.origin.unlike_archive()) is not None:
            yield (
                f"note: {name} in {code.ARCHIVE} of run {side} is not what it imported"
            )


def under_earlier_settings(
    a: Record, b: Record, difference: Difference
) -> Iterator[str]:
    """Yield a line for each record that a resume changed after the runs diverged.

    Its config.yaml has the settings of its last steps alone.
    """
    for side, recorded in (("A", a), ("B", b)):
        altered = [
            (step, f"{key} {values} at step {step}")
            for step, changes in record.altered(recorded.summary)
            for key, values in changes.items()
            if type(step) is int and step > (difference.equal_through or 0)
        ]
        if not altered:
            continue
        last = max(step for step, _ in altered)
        shown = ", ".join(_short(change, 160) for _, change in altered)
        yield (
            f"\n{side} was continued under other settings or code: {shown}. Its steps"
            f" before were trained under the earlier ones, and config.yaml has the last"
            f" ones, so only what follows step {last} can be repeated: verify.py"
            f" --from-step {last}, if its checkpoint was kept"
            " (trainer.keep_checkpoint_every_steps)"
        )


def left_out(entries: Iterable[str]) -> str:
    """Return the line on what was not compared; `--json` has the keys of a file that
    was compared but for some."""
    lines = [entry.partition(": ") for entry in entries]
    names = [_short(f"{name} in part" if keys else name) for name, _, keys in lines]
    has_keys = any(keys for _, _, keys in lines)
    return f"not compared: {'; '.join(names)}{' (keys: --json)' if has_keys else ''}"


def table(changes: Iterable[Change]) -> Iterator[str]:
    cells = [(_short(c.key, 160), _short(c.before), _short(c.now)) for c in changes]
    yield from (f"  {line}" for line in text.aligned([("", "A", "B"), *cells]))


def _short(value: object, most: int = 44) -> str:
    shown = printable("-" if value is None else " ".join(str(value).split()))
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."


def metrics(recorded: Record) -> dict[str, float]:
    """Return the numeric metrics in a record's summary."""
    values = recorded.summary.get("metrics")
    values = values if isinstance(values, Mapping) else {}
    return {
        str(key): float(v) for key, v in values.items() if isinstance(v, float | int)
    }


def metrics_table(
    a: Record, b: Record, tolerances: Mapping[str, float]
) -> Iterator[str]:
    """Yield a table of shared metrics, their difference, and whether it is
    tolerated."""
    # The final metrics if both runs finished, else those of the last step that both
    # logged.
    title = "At the end"
    values = [metrics(a), metrics(b)]
    if not all(each.summary.get("status") == "finished" for each in (a, b)):
        logged = [
            {int(r["step"]): r for r in recorded.metrics if r["phase"] == "train"}
            for recorded in (a, b)
        ]
        step = max(logged[0].keys() & logged[1].keys(), default=0)
        cells = [record.values_of(rows[step]) if step else {} for rows in logged]
        title = f"At step {step}"
        values = [{name: float(cell) for name, cell in each.items()} for each in cells]
    rows = [(title, "A", "B", "difference", "")]
    for key in (key for key in values[0] if key in values[1]):
        x = values[0][key]
        y = values[1][key]
        # NaN equals NaN here
        same = str(x) == str(y)
        within = ""
        if key in tolerances:
            is_within = same or abs(y - x) <= tolerances[key]
            within = f"{'' if is_within else 'NOT '}within {tolerances[key]:g}"
        shown = "0" if same else f"{y - x:+.3g}"
        rows.append((key, f"{x:.6g}", f"{y:.6g}", shown, within))
    if len(rows) > 1:
        yield ""
        yield from text.aligned(rows)


def draw(a: Record, b: Record, result: Comparison, out: Path) -> None:
    """Draw both runs into `out`; raise InputError unless it is a writable .png path."""
    from seedbed.record import plots  # imports NumPy

    if out.suffix != ".png":
        raise InputError(f"--plot: expected a name that ends in .png, got {out}")
    step = result.difference.step if result.difference else None
    columns = list(dict.fromkeys(("loss", str(a.summary.get("metric_name") or "loss"))))
    names = ", ".join(f"{x} {Path(run.name).name}" for x, run in (("A", a), ("B", b)))
    title = "the runs agree" if step is None else f"the runs diverge at step {step:,}"
    tables = {"A": a.metrics, "B": b.metrics}
    try:
        plots.draw(out, tables, columns, f"{names}: {title}", step)
    except OSError as error:
        raise InputError(
            f"--plot: expected a file that can be written, got {error.strerror}: {out}"
        ) from None


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
            {
                "key": c.key,
                "kind": c.kind,
                "a": c.before,
                "b": c.now,
                "alters_bits": c.alters_bits,
            }
            for c in record.changes(a.origin, b.origin)
        ],
        "metrics": {"a": metrics(a), "b": metrics(b)},
        "notes": result.notes,
        "not_compared": stated.not_compared(a, b),
    }
