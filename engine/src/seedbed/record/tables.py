"""The append-only tables of a record: metrics.csv and fingerprints.csv."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from seedbed.names import STAGES
from seedbed.record import untrusted
from seedbed.record.folder import write_atomically

METRIC_FIELDS = ("step", "epoch", "phase", "loss", "learning_rate")  # metrics follow by name
FINGERPRINT_FIELDS = ("step", *STAGES)
Row = dict[str, str]


class Table:
    """An append-only CSV file of a record; new columns in a row are added on the right."""

    def __init__(
        self, path: Path, fields: Sequence[str], keeps: Callable[[Row], bool] | None = None
    ) -> None:
        """Start the file, or resume it with the rows for which `keeps` returns true."""
        self._path = path
        rows = [] if keeps is None else list(filter(keeps, self._rows(fields)))
        # Drop columns that are empty in all of these rows: they were added later.
        used = dict.fromkeys(name for row in rows for name, cell in row.items() if cell)
        self._write((*fields, *(name for name in used if name not in fields)), rows)

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Append rows; missing fields stay empty."""
        for row in rows:
            if new := [name for name in row if name not in self._fields]:
                self.close()
                self._write((*self._fields, *new), self._rows(self._fields))
            self._file.write(self._line(row))
        self._file.flush()

    def sync(self) -> None:
        """Fsync the file, so that the appended rows survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def _rows(self, fields: Sequence[str]) -> list[Row]:
        """Return the rows so far; their number is not limited, since the run is our own."""
        return untrusted.read_rows(self._path, fields, sys.maxsize)

    def _write(self, fields: tuple[str, ...], rows: Iterable[Mapping[str, object]]) -> None:
        """Replace the file with these columns and rows, and open it for appending."""
        self._fields = fields
        header = dict(zip(fields, fields, strict=True))
        write_atomically(self._path, "".join(map(self._line, (header, *rows))))
        self._file = open(self._path, "a", newline="")

    def _line(self, row: Mapping[str, object]) -> str:
        return ",".join(str(row.get(field, "")) for field in self._fields) + "\n"


def open_tables(folder: Path, keeps: Callable[[Row], bool] | None = None) -> tuple[Table, Table]:
    """Start metrics.csv and fingerprints.csv, or resume them with the rows to keep."""
    metrics = Table(folder / "metrics.csv", METRIC_FIELDS, keeps)
    return metrics, Table(folder / "fingerprints.csv", FINGERPRINT_FIELDS, keeps)


def read_metrics(folder: Path) -> list[Row]:
    """Read metrics.csv as a list of rows of strings (`METRIC_FIELDS`, then metrics by name)."""
    return untrusted.read_rows(folder / "metrics.csv", METRIC_FIELDS)


def values_of(row: Mapping[str, object]) -> dict[str, str]:
    """Return the non-empty cells of a row of metrics.csv (losses, rates, metrics), by column."""
    others = ("step", "epoch", "phase")
    return {name: str(cell) for name, cell in row.items() if name not in others and cell != ""}


def last_values(rows: Iterable[Row]) -> dict[str, float]:
    """Return the last values of training and validation in metrics.csv, as in summary.json."""
    values: dict[str, float] = {}
    for row in rows:
        if row["phase"] == "validation":
            values |= {f"validation_{n}": float(cell) for n, cell in values_of(row).items()}
        elif row["phase"] == "train":
            values["last_train_loss"] = float(row["loss"])
    return values


def read_fingerprints(folder: Path) -> list[Row]:
    """Read fingerprints.csv as a list of rows of strings (`FINGERPRINT_FIELDS`)."""
    return untrusted.read_rows(folder / "fingerprints.csv", FINGERPRINT_FIELDS)
