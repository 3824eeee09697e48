"""What a record states as results, held against a replay: its tables, summary and predictions."""

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from seedbed import record
from seedbed.compare.difference import Record
from seedbed.record import Row, untrusted

# What summary.json states that follows from the configuration; the rest is of time and history.
_STATED = (
    *("task", "metric_name", "higher_is_better", "steps", "epochs", "metrics", "objective"),
    *("parameters", "fingerprints", "best_step", "tested_step", "stopped_early"),
)
_MOST_BYTES = 1 << 30


def forged(run: Path, folder: Path, a: Record, b: Record, whole: bool) -> Iterator[str]:
    """Yield a line on each thing that a record states and its replay does not.

    Args:
        run, folder: of the record and of its replay.
        a, b: what they hold of the steps that were replayed.
        whole: the run finished: its tables are compared as bytes, its summary and predictions too.
    """
    for name, rows_a, rows_b in (
        ("fingerprints.csv", a.fingerprints, b.fingerprints),
        ("metrics.csv", a.metrics, b.metrics),
    ):
        line = _first_row(rows_a, rows_b, whole)
        if line is None and whole and _content(run / name) != _content(folder / name):
            line = "other columns or other bytes"
        if line is not None:
            yield f"{name}: {line}"
    if not whole:
        return
    stated = [
        {k: v for k, v in record.flatten(each.summary).items() if k.partition(".")[0] in _STATED}
        for each in (a, b)
    ]
    for key in sorted(stated[0].keys() | stated[1].keys()):
        values = [repr(each.get(key)) for each in stated]
        if values[0] != values[1]:
            yield f"summary.json: {key} is {values[0]} in the record, {values[1]} in the replay"
    if _content(run / "test_predictions.csv") != _content(folder / "test_predictions.csv"):
        yield "test_predictions.csv: other predictions"


def _first_row(a: list[Row], b: list[Row], whole: bool) -> str | None:
    """Return the first row that differs.

    A replay of a part has evaluated at its last step, where the run may have been interrupted.
    """
    pairs = zip_longest(map(_filled, a), map(_filled, b if whole else b[: len(a)]))
    for x, y in pairs:
        if x != y:
            step = (x or y or {}).get("step")
            phase = (x or y or {}).get("phase")
            where = f"step {step}" + (f", {phase}" if phase else "")
            if x is None or y is None:
                return f"{where}: a row that only the {'replay' if x is None else 'record'} has"
            return f"{where}: another row than in the replay"
    return None


def _filled(row: Row) -> Row:
    return {name: cell for name, cell in row.items() if cell != ""}


def _content(path: Path) -> bytes | None:
    return untrusted.read_bytes(path, _MOST_BYTES) if path.is_file() else None
