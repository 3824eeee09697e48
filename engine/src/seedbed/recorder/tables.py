"""The tables of a loop of one's own: rows stay on the device until they are written."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from seedbed import fingerprint, record
from seedbed.errors import InputError
from seedbed.recorder.results import Results
from seedbed.worker.imports import Imports


class Tables:
    """metrics.csv and fingerprints.csv of a run folder.

    Attributes:
        imports: notes what the loop has imported, whenever rows are written.
    """

    def __init__(self, folder: Path, results: Results, resume_from: int | None) -> None:
        """Start the tables, or cut them back to a step.

        Args:
            results: makes the rows of metrics.csv; it is told what a table that stays holds.
        """
        self._folder, self._results = folder, results
        if resume_from is not None:
            _require_step(folder, resume_from)
        self._metrics, self._fingerprints = (
            record.Table(
                folder / name,
                fields if resume_from is None else _columns(folder / name),
                _kept(folder / name, resume_from),
            )
            for name, fields in (
                ("metrics.csv", record.METRIC_FIELDS),
                ("fingerprints.csv", record.FINGERPRINT_FIELDS),
            )
        )
        if resume_from is not None:
            results.read(record.read_metrics(folder))
        self._pending: list[tuple[int, dict[str, Tensor | float], Any]] = []
        self._stages = fingerprint.FingerprintRows()
        self.imports: Imports | None = None

    def add_stages(self, step: int, stages: Tensor) -> None:
        """Note the fingerprints of a step; nothing is read from the device yet."""
        self._stages.add(step, stages)

    def add_step(self, step: int, values: dict[str, Tensor | float], rate: Any) -> int:
        """Note the values of a step; return how many steps are not written yet."""
        self._pending.append((step, values, rate))
        return len(self._pending)

    def write(self) -> None:
        """Write down what was noted; waits for the device once."""
        if not self._pending:
            return
        numbers = iter(_numbers([value for _, each, _ in self._pending for value in each.values()]))
        rows = [
            self._results.training_row(step, {name: next(numbers) for name in values}, rate)
            for step, values, rate in self._pending
        ]
        self._pending = []
        self._metrics.append(rows)
        self._fingerprints.append(self._stages.take_rows())
        if self.imports is not None:
            self.imports.note(rows)

    def write_row(self, row: dict[str, object]) -> None:
        """Write a row of metrics.csv, after all that was noted before."""
        self.write()
        self._metrics.append([row])

    def close(self) -> None:
        """Make the tables survive a power cut, and close them."""
        for table in (self._metrics, self._fingerprints):
            table.sync()
            table.close()


def _require_step(folder: Path, step: int) -> None:
    """Raise InputError if a record ends before the step that a loop goes on from."""
    steps = [int(r["step"]) for r in record.read_metrics(folder) if r["step"].isdigit()]
    last = max(steps, default=0)
    if step > last:
        raise InputError(
            f"resume_from: expected at most {last}, the last step that {folder} holds, got {step}; "
            "call flush() with each checkpoint, or name an earlier one"
        )


def _kept(path: Path, step: int | None) -> int | None:
    """Return the length of a table's part up to a step, in bytes; None for a new table."""
    if step is None:
        return None
    kept = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file):
            first = line.partition(b",")[0]
            if number and not (line.endswith(b"\n") and first.isdigit() and int(first) <= step):
                break
            kept += len(line)
    return kept


def _columns(path: Path) -> list[str]:
    """Return the columns of a table that is there, those of a loop's own values with them."""
    with open(path) as file:
        return file.readline().rstrip("\n").split(",")


def _numbers(values: list[Tensor | float]) -> list[float]:
    """Return values as numbers, by one transfer if they are alike."""
    tensors = [value for value in values if isinstance(value, Tensor)]
    if len({(tensor.device, tensor.dtype) for tensor in tensors}) != 1:
        return [float(value) for value in values]
    numbers = iter(torch.stack(tensors).tolist())
    return [float(next(numbers) if isinstance(value, Tensor) else value) for value in values]
