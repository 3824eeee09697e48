"""A run that is replayed: it begins as its record did, and stops where it differs from it."""

import signal
from collections.abc import Iterable, Mapping
from pathlib import Path

from seedbed import record, signals
from seedbed.config import Request
from seedbed.errors import InputError
from seedbed.record import Row, untrusted
from seedbed.training import checkpoint
from seedbed.worker.job import Job


class Replayed:
    """The rows of a record, and the request to stop at the first that this run has otherwise."""

    def __init__(self, request: Request, stop: signals.Stop) -> None:
        self._stop, self._last_step = stop, request.last_step
        self._rows: dict[tuple[int, str], Row] = {}
        if request.record and request.stops_where_it_differs:
            folder = Path(str(request.record))
            tables = [record.read_metrics(folder)]
            if (folder / "fingerprints.csv").exists():
                tables.append(record.read_fingerprints(folder))
            self._rows = {_key(row): row for rows in tables for row in rows}

    def reach(self, step: int) -> None:
        """Ask to stop after the last step that is to be replayed, and the evaluation after it."""
        if self._last_step is not None and step > self._last_step:
            self._stop.ask(128 + signal.SIGTERM)

    def compare(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Ask to stop if the record has one of some rows otherwise."""
        for row in rows:
            recorded = self._rows.get(_key(row), {})
            if any(str(row.get(name, "")) != cell for name, cell in recorded.items()):
                self._stop.ask(signals.DIFFERS)


def _key(row: Mapping[str, object]) -> tuple[int, str]:
    return int(str(row["step"])), str(row.get("phase", ""))


def begin(job: Job) -> None:
    """Put the checkpoint of a step of a record, and what was recorded so far, into a run folder.

    Raises:
        InputError: the record has no checkpoint of that step.
    """
    run, step = Path(str(job.request.record)), job.request.first_step
    untrusted.require_no_way_out(run)
    (job.folder / "checkpoints").mkdir()
    paths = [run / "checkpoints" / name for name in record.LAST_CHECKPOINTS]
    steps = {
        checkpoint.progress_of(checkpoint.load(path)).step: path for path in paths if path.exists()
    }
    if step not in steps:
        there = " or ".join(map(str, sorted(steps))) or "none: the record has no checkpoint"
        raise InputError(f"--from-step: expected the step of a checkpoint, {there}, got {step}")
    names = ("metrics.csv", "fingerprints.csv", "environment.json", "code.zip")
    copies = {name: run / name for name in (*names, "checkpoints/best.pt")}
    copies["checkpoints/last.pt"] = steps[step]
    for name, path in copies.items():
        if path.exists():
            record.write_atomically(job.folder / name, path.read_bytes())
    summary = {"format_version": record.FORMAT_VERSION, "status": "interrupted"}
    record.write_json(job.folder / "summary.json", summary)
