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
            A replay of a part has evaluated at its last step, where the run may have been stopped.
    """
    for name, of_a, of_b in (
        ("fingerprints.csv", a.fingerprints, b.fingerprints),
        ("metrics.csv", a.metrics, b.metrics),
    ):
        pairs = zip_longest(map(_filled, of_a), map(_filled, of_b if whole else of_b[: len(of_a)]))
        first = next((x or y for x, y in pairs if x != y), None)
        if first is not None:
            phase = f", {first['phase']}" if "phase" in first else ""
            yield f"{name}: step {first['step']}{phase}: another row than in the replay"
        elif whole and _content(run / name) != _content(folder / name):
            yield f"{name}: other columns or other bytes"
    if not whole:
        return
    stated = [
        {k: v for k, v in record.flatten(each.summary).items() if k.partition(".")[0] in _STATED}
        for each in (a, b)
    ]
    for key in sorted(stated[0].keys() | stated[1].keys()):
        x, y = (repr(each.get(key)) for each in stated)
        if x != y:
            yield f"summary.json: {key} is {x} in the record, {y} in the replay"
    if _content(run / "test_predictions.csv") != _content(folder / "test_predictions.csv"):
        yield "test_predictions.csv: other predictions"


def _filled(row: Row) -> Row:
    return {name: cell for name, cell in row.items() if cell != ""}


def _content(path: Path) -> bytes | None:
    return untrusted.read_bytes(path, _MOST_BYTES) if path.is_file() else None
