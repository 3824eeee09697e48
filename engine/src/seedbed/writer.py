"""The writer of a run folder, for `train.py`'s run logger and `seedbed.Recorder`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from seedbed import fingerprint, record
from seedbed.environment import Imports
from seedbed.record import Monitor, Results, Row, Rows, files


class Noted(NamedTuple):
    """What was noted of a step, once it has been read from the device."""

    phase: str  # train, validation or test
    step: int
    values: dict[str, float]


class Writer:
    """Writes the tables of a run, and what every summary.json says.

    Values and fingerprints stay on the device until `take`, so that no step waits for
    them. The tables contain no times, so that every bit of them is reproducible.
    """

    def __init__(
        self,
        folder: Path,
        keeps: Callable[[Row], bool] | None = None,
        imports: Imports | None = None,
    ) -> None:
        """Start the tables, or resume them with the rows for which `keeps` returns
        true."""
        self._folder = folder
        # None until the run has imported what it needs for its first step
        self.imports = imports
        self._tables = record.Tables(folder, keeps)
        self.results = Results(record.read_metrics(folder))
        self._values: list[tuple[str, int, Mapping[str, Tensor | float]]] = []
        self._stages: list[tuple[int, Tensor]] = []

    def note(
        self,
        phase: str,
        step: int,
        values: Mapping[str, Tensor | float],
        stages: Tensor | None = None,
    ) -> int:
        """Note scalars of a step and the hashes of its stages; return how many wait."""
        self._values.append((phase, step, values))
        if stages is not None:
            self._stages.append((step, stages))
        return len(self._values)

    def take(self) -> tuple[list[Noted], Rows]:
        """Return what was noted since the last call, and the rows of its fingerprints.

        Waits for the device once for the fingerprints and once for all values of a
        dtype.
        """
        values = [x for *_, by_name in self._values for x in by_name.values()]
        numbers = iter(_numbers(values))
        noted = [
            Noted(phase, step, {name: next(numbers) for name in by_name})
            for phase, step, by_name in self._values
        ]
        fingerprints = fingerprint.rows(self._stages)
        # Not before: Ctrl-C may come while the device is waited for.
        self._values = []
        self._stages = []
        return noted, fingerprints

    def append(self, rows: Rows, fingerprints: Rows = ()) -> None:
        """Append rows to the tables, and keep the code that was imported since."""
        self._tables.append(rows, fingerprints)
        self.results.add(rows)
        self._note_imports()

    def sync(self) -> None:
        """Fsync the tables, so that the appended rows survive a power cut."""
        self._tables.sync()

    def close(self) -> None:
        self._tables.close()
        self._note_imports()

    def _note_imports(self) -> None:
        if self.imports is not None:
            self.imports.note()

    def summary(
        self,
        monitor: Monitor,
        step_that_counts: int,
        tested_step: int | None,
        parameters: Iterable[Tensor],
        weights: str | None,  # their fingerprint
    ) -> dict[str, Any]:
        """Return what summary.json says of every run, whoever wrote its loop."""
        return {
            "metric_name": monitor.name,
            "higher_is_better": monitor.higher_is_better,
            "tested_step": tested_step,
            "metrics": self.results.of(step_that_counts),
            "last_metrics": self.results.last(),
            "parameters": sum(parameter.numel() for parameter in parameters),
            "fingerprints": {
                "weights": weights,
                "all_steps": files.of_file(self._folder / "fingerprints.csv")[:16],
            },
        }


def row(phase: str, step: int, values: Mapping[str, float], **cells: str) -> Row:
    """Return a row of metrics.csv, in which each value has all of its digits."""
    digits = {name: repr(float(value)) for name, value in values.items()}
    return {"step": str(step), **cells, "phase": phase, **digits}


def _numbers(scalars: Sequence[Tensor | float]) -> list[float]:
    """Return tensors of one element and numbers as floats, in order."""
    tensors: dict[tuple[torch.device, torch.dtype], dict[int, Tensor]] = {}
    numbers = []
    for index, scalar in enumerate(scalars):
        if isinstance(scalar, Tensor) and not (
            scalar.is_complex() or scalar.is_quantized
        ):
            alike = tensors.setdefault((scalar.device, scalar.dtype), {})
            alike[index] = scalar.reshape(())
            numbers.append(0.0)  # replaced below
        else:
            numbers.append(float(scalar))
    for alike in tensors.values():
        read = torch.stack([*alike.values()]).tolist()
        for index, number in zip(alike, read, strict=True):
            numbers[index] = float(number)
    return numbers
