"""The tables of a record, which only grow: metrics.csv and fingerprints.csv."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from seedbed.errors import InputError
from seedbed.names import STAGES
from seedbed.record import untrusted
from seedbed.record.files import write_atomically

METRIC_FIELDS = ("step", "epoch", "phase", "loss", "learning_rate")  # metrics follow by name
FINGERPRINT_FIELDS = ("step", *STAGES)
Row = dict[str, str]


class Table:
    """A CSV file of a record that only grows, and can be cut back to where a checkpoint was.

    Attributes:
        fields: its columns; a row with others adds them at the end.
    """

    def __init__(self, path: Path, fields: Sequence[str], keep_bytes: int | None = None) -> None:
        """Start the file, or resume with its first `keep_bytes` bytes, and `fields` as of then."""
        self.path, self.fields = path, tuple(fields)
        if keep_bytes is None:
            self._file = open(path, "w", newline="")
            self.append([dict(zip(fields, fields, strict=True))])
            return
        self._set_columns(self.fields)
        require_bytes(path, keep_bytes)
        os.truncate(path, keep_bytes)
        self._file = open(path, "a", newline="")

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows; fields that are missing stay empty."""
        for row in rows:
            if new := [name for name in row if name not in self.fields]:
                self._file.close()
                self._set_columns((*self.fields, *new))
                self._file = open(self.path, "a", newline="")
            self._file.write(",".join(str(row.get(field, "")) for field in self.fields) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Make what was written survive a power cut; return the file's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()

    def _set_columns(self, fields: tuple[str, ...]) -> None:
        """Take away the columns behind these, or add them, empty in the rows so far."""
        self.fields = fields
        header, *rows = self.path.read_text().splitlines()
        if header != ",".join(fields):
            cells = ((row.split(",") + [""] * len(fields))[: len(fields)] for row in rows)
            lines = (",".join(line) + "\n" for line in (fields, *cells))
            write_atomically(self.path, "".join(lines))


def require_bytes(path: Path, least: int) -> None:
    """Raise InputError for a table that is shorter than it was when a checkpoint was made."""
    size = path.stat().st_size if path.exists() else 0
    if size < least:
        raise InputError(
            f"{path}: expected at least {least} bytes, got {size}: it was shortened; replay the run"
        )


def read_metrics(folder: Path) -> list[Row]:
    """Read metrics.csv as a list of rows of strings (`METRIC_FIELDS`, then metrics by name)."""
    return untrusted.read_rows(folder / "metrics.csv", METRIC_FIELDS, has_more=True)


def values_of(row: Mapping[str, object]) -> dict[str, str]:
    """Return the cells of a row of metrics.csv that hold a value, by column."""
    others = ("step", "epoch", "phase")
    return {name: str(cell) for name, cell in row.items() if name not in others and cell != ""}


def read_fingerprints(folder: Path) -> list[Row]:
    """Read fingerprints.csv as a list of rows of strings (`FINGERPRINT_FIELDS`)."""
    return untrusted.read_rows(folder / "fingerprints.csv", FINGERPRINT_FIELDS)
