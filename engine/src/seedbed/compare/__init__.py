"""The first difference between two records: its step and stage."""

import csv
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.compare.stages import in_order
from seedbed.errors import InputError
from seedbed.names import STAGES, flatten
from seedbed.record import Row, untrusted
from seedbed.record.results import is_mean

_MOST_BYTES = 1 << 30  # of a table of predictions


@dataclass(frozen=True)
class Difference:
    """The first place where two records differ."""

    step: int
    stage: str  # the first of `stages.in_order` that differs at that step
    a: str  # the fingerprint or value there
    b: str
    equal_stages: tuple[str, ...] = ()  # compared before it at that step
    equal_through: int | None = None  # the last step compared before it
    # Weights were compared at this step and at the one before, so the difference arose
    # in this stage; if False, it may have arisen in an earlier stage or step.
    located: bool = True


@dataclass(frozen=True)
class Record:
    """The contents of a run folder."""

    name: str
    origin: record.Origin
    summary: dict[str, Any]
    metrics: list[Row]
    fingerprints: list[Row]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, flattened to dotted keys."""
        return self.origin.settings


@dataclass(frozen=True)
class Comparison:
    """The first difference, if any, and the extent of the comparison."""

    difference: Difference | None
    steps: int  # number of steps compared
    stages: tuple[str, ...]  # compared at one step or more
    notes: tuple[str, ...]  # limits of the comparison


def first_difference(rows_a: Iterable[Row], rows_b: Iterable[Row]) -> Difference | None:
    """Return the first difference between the rows of two records, or None.

    Rows are in increasing order of `step`, with columns that `stages.in_order` knows.
    Steps and columns that only one record has are skipped.
    """
    previous: tuple[int, tuple[str, ...]] | None = None
    for step, columns, a, b in paired(rows_a, rows_b):
        if differing := record.differing(a, b, columns):
            column = differing[0]
            # Step 0 counts as compared: there is no step before step 1.
            before, compared = previous or (0, ("weights",))
            located = (
                before == step - 1 and "weights" in columns and "weights" in compared
            )
            through = previous[0] if previous else None
            equal = columns[: columns.index(column)]
            return Difference(
                step, column, a[column], b[column], equal, through, located
            )
        previous = (step, columns)
    return None


def paired(
    rows_a: Iterable[Row], rows_b: Iterable[Row]
) -> Iterator[tuple[int, tuple[str, ...], Row, Row]]:
    """Yield (step, shared columns, row, row) for the steps that both have, in order."""
    others = {int(row["step"]): row for row in rows_b}
    for a in rows_a:
        b = others.get(int(a["step"]))
        if b and (columns := in_order(frozenset(a.keys() & b.keys()) - {"step"})):
            yield int(a["step"]), columns, a, b


def compare(a: Record, b: Record) -> Comparison:
    """Compare two records at all steps that both have; raise InputError if there is
    none."""
    rows_a = rows(a, b)
    rows_b = rows(b, a)
    pairs = list(paired(rows_a, rows_b))
    steps_a, steps_b = ({row["step"] for row in r.fingerprints} for r in (a, b))
    if not pairs or (steps_a and steps_b and steps_a.isdisjoint(steps_b)):
        raise InputError(
            f"{b.name}: expected a recorded step in common with {a.name}, got none in"
            f" {len(rows_b)} rows; train both longer, with the same"
            " fingerprint.every_steps"
        )
    filled = (
        column for _, columns, row, _ in pairs for column in columns if row[column]
    )
    stages = in_order(frozenset(filled))
    return Comparison(
        first_difference(rows_a, rows_b), len(pairs), stages, tuple(_notes(a, b))
    )


# Settings that divide the same evaluated samples into other batches, whose hashes are
# others.
_EVALUATED_BATCHES = (
    "data.eval_batch_size",
    "trainer.limit_validation_batches",
    "trainer.limit_test_batches",
)


def _has_equal_batches(a: Record, b: Record) -> bool:
    """Return whether the hashes of evaluated samples of two records are comparable."""
    return all(a.config.get(key) == b.config.get(key) for key in _EVALUATED_BATCHES)


def rows(recorded: Record, other: Record) -> list[Row]:
    """Return a row per step of a record: its metrics, and fingerprints comparable to
    `other`.

    Final fingerprints are added only if both runs finished at the same step, those of
    predictions and their table only if both also tested the weights of the same step.
    """
    table: dict[int, Row] = {}
    slices = ("trainer.shards", "trainer.accumulate")
    stages = comparable_stages(
        *([r.config.get(key, 1) for key in slices] for r in (recorded, other))
    )
    for row in recorded.fingerprints:
        table.setdefault(int(row["step"]), {}).update(
            {stage: row[stage] for stage in stages}
        )
    for row in recorded.metrics:
        # Means of an epoch follow from its steps, and from how many of these are
        # logged.
        values = {
            n: cell for n, cell in record.values_of(row).items() if not is_mean(n, row)
        }
        cells = {f"{row['phase']}_{name}": cell for name, cell in values.items()}
        table.setdefault(int(row["step"]), {}).update(cells)

    step = recorded.summary.get("steps")
    final = recorded.summary.get("fingerprints")
    is_finished = recorded.summary.get("status") == "finished" and _state_the_same(
        recorded, other, "status", "steps"
    )
    if is_finished and isinstance(step, int) and isinstance(final, dict):
        table.setdefault(step, {}).update(_final_cells(recorded, other, final))
    return [{"step": str(step), **cells} for step, cells in sorted(table.items())]


def _final_cells(recorded: Record, other: Record, final: Mapping[str, Any]) -> Row:
    """Return the final fingerprints of a finished run that are comparable to
    `other`."""
    tested_alike = _state_the_same(recorded, other, "tested_step")
    names = ["weights"]
    if tested_alike:
        names.append("predictions")
    if _has_equal_batches(recorded, other):
        names += ["validation_samples", "test_samples"]
    cells = {
        f"final_{name}": str(final[name])
        for name in names
        if final.get(name) is not None
    }
    if tested_alike and (digest := _digest_of_predictions(recorded)):
        cells["final_table"] = digest
    return cells


def _state_the_same(a: Record, b: Record, *keys: str) -> bool:
    """Return whether two summaries have the same values of some keys, or lack them."""
    return all(a.summary.get(key) == b.summary.get(key) for key in keys)


def _digest_of_predictions(recorded: Record) -> str | None:
    """Return the SHA-256 of test_predictions.csv without the names of samples; None
    without it."""
    path = (recorded.origin.folder or Path(recorded.name)) / "test_predictions.csv"
    if not path.is_file():
        return None
    content = untrusted.read_bytes(path, _MOST_BYTES)
    header = (
        content.partition(b"\n")[0].decode(errors="replace").rstrip("\r").split(",")
    )
    if "name" in header:  # paths, which may lead to equal files elsewhere
        try:
            rows = [*csv.reader(io.StringIO(content.decode(), newline=""))]
        except (ValueError, csv.Error) as error:
            raise InputError(
                f"{path}: expected a table, got {error}; replay the run"
            ) from None
        column = header.index("name")
        content = repr([[*row[:column], *row[column + 1 :]] for row in rows]).encode()
    return hashlib.sha256(content).hexdigest()


def comparable_stages(*shards: Any) -> tuple[str, ...]:
    """Return the stages whose fingerprints are comparable between these numbers of
    shards."""
    # The hash of a sharded batch is made of its shards' hashes, so it depends on their
    # number.
    alike = all(each == shards[0] for each in shards)
    return tuple(
        stage for stage in STAGES if alike or stage not in ("sample_ids", "batch")
    )


def read(folder: Path) -> Record:
    """Read a run folder; raise InputError if it is not one, is damaged or is too
    new."""
    record.require_run(folder)
    config = flatten(untrusted.read_dict(folder))
    environment = record.read_environment(folder)
    # If fingerprints are switched off, a missing or empty table is not damage.
    off = not config.get("fingerprint.every_steps")
    missing = off and not (folder / "fingerprints.csv").exists()
    fingerprints = [] if missing else record.read_fingerprints(folder)
    metrics = record.read_metrics(folder)
    _check(folder / "fingerprints.csv", fingerprints)
    _check(folder / "metrics.csv", metrics)
    origin = record.Origin(config, environment, folder)
    return Record(
        str(folder), origin, record.read_summary(folder), metrics, fingerprints
    )


def _notes(a: Record, b: Record) -> Iterator[str]:
    """Yield notes on the limits of a comparison, such as metrics that only one record
    has."""
    yield from _notes_on_steps(a, b)
    yield from _notes_on_evaluations(a, b)
    yield from _notes_on_resumes_and_metrics(a, b)
    yield from _notes_on_fingerprints(a, b)


def _notes_on_steps(a: Record, b: Record) -> Iterator[str]:
    last = [
        max((int(row["step"]) for row in r.fingerprints + r.metrics), default=0)
        for r in (a, b)
    ]
    if last[0] != last[1]:
        yield (
            f"A is recorded to step {last[0]} and B to step {last[1]}: common steps are"
            " compared"
        )


def _notes_on_evaluations(a: Record, b: Record) -> Iterator[str]:
    both = (a, b)
    tested = [r.summary.get("tested_step") for r in both]
    if None not in tested and tested[0] != tested[1]:
        yield (
            f"A tested the weights of step {tested[0]}, B of step {tested[1]}: not"
            " compared"
        )
    for split in ("validation", "test") if _has_equal_batches(a, b) else ():
        hashes = [
            (r.summary.get("fingerprints") or {}).get(f"{split}_samples") for r in both
        ]
        if None not in hashes and hashes[0] != hashes[1]:
            yield (
                f"A and B evaluated other {split} samples, or had other draws for them"
            )


def _notes_on_resumes_and_metrics(a: Record, b: Record) -> Iterator[str]:
    both = (a, b)
    filled = [
        {name for row in r.metrics for name, cell in row.items() if cell} for r in both
    ]
    logged = [{name for name in names if not is_mean(name, names)} for names in filled]
    for side, run, logged_names in zip("AB", both, logged, strict=True):
        for step, keys in record.altered(run.summary):
            told = "with changes that can alter bits"
            yield f"{side} was resumed at step {step} {told}: {', '.join(keys)}"
        if only := logged_names - (logged[0] & logged[1]):
            yield (
                f"metrics that only {side} logged are not compared:"
                f" {', '.join(sorted(only))}"
            )


def _notes_on_fingerprints(a: Record, b: Record) -> Iterator[str]:
    both = (a, b)
    if missing := [
        side for side, run in zip("AB", both, strict=True) if not run.fingerprints
    ]:
        yield (
            f"no fingerprints in {' and '.join(missing)}: compared by losses and"
            " metrics alone"
        )
        return
    for key, text in (
        ("trainer.shards", "fingerprints of sample ids and batches are not compared"),
        ("fingerprint.every_steps", "common steps are compared"),
    ):
        x, y = (r.config.get(key) for r in both)
        if x != y:
            yield f"{key} is {x} in A, {y} in B: {text}"


def _check(path: Path, table: list[Row]) -> None:
    """Raise InputError unless steps increase and the values of metrics are numbers."""
    last = -1
    seen = set[tuple[int, str]]()
    for row in table:
        phase = row.get("phase")
        try:
            step = int(row["step"])
            if phase is not None:
                [float(cell) for cell in record.values_of(row).values()]
        except ValueError as error:
            raise InputError(
                f"{path}: expected numbers, got {error}; replay the run"
            ) from None
        # Metrics may have several rows per step; the final test may have an earlier
        # step.
        if phase != "test" and (step < last or (step == last and phase is None)):
            raise InputError(
                f"{path}: expected steps that increase, got {step} after {last}; replay"
                " the run"
            )
        if phase is not None and (step, phase) in seen:
            raise InputError(
                f"{path}: expected one row of a step and phase, got two of step {step},"
                f" {phase}; replay the run"
            )
        seen.add((step, str(phase)))
        last = max(step, last)
