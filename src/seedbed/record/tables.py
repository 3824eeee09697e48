"""The tables of a record, which only grow: metrics.csv and fingerprints.csv."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from seedbed.errors import InputError
from seedbed.names import STAGES
from seedbed.record import untrusted

METRIC_FIELDS = ("step", "epoch", "phase", "loss", "metric", "learning_rate")
FINGERPRINT_FIELDS = ("step", *STAGES)
Row = dict[str, str]


class Table:
    """A CSV file of a record that only grows, and can be cut back to where a checkpoint was."""

    def __init__(self, path: Path, fields: tuple[str, ...], keep_bytes: int | None = None) -> None:
        """Start the file with its header, or resume with its first `keep_bytes` bytes."""
        self._fields = fields
        if keep_bytes is None:
            self._file = open(path, "w", newline="")
            self.append([dict(zip(fields, fields, strict=True))])
            return
        require_bytes(path, keep_bytes)
        os.truncate(path, keep_bytes)
        self._file = open(path, "a", newline="")

    def append(self, rows: Iterable[Mapping[str, object]]) -> None:
        """Add rows; fields that are missing stay empty."""
        for row in rows:
            self._file.write(",".join(str(row.get(field, "")) for field in self._fields) + "\n")
        self._file.flush()

    def sync(self) -> int:
        """Make what was written survive a power cut; return the file's length in bytes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def require_bytes(path: Path, least: int) -> None:
    """Raise InputError for a table that is shorter than it was when a checkpoint was made."""
    size = path.stat().st_size if path.exists() else 0
    if size < least:
        raise InputError(
            f"{path}: expected at least {least} bytes, got {size}; the record was shortened, "
            "replay the run with scripts/verify.py"
        )


def read_metrics(folder: Path) -> list[Row]:
    """Read metrics.csv as a list of rows of strings (`METRIC_FIELDS`)."""
    return list(untrusted.read_rows(folder / "metrics.csv", METRIC_FIELDS))


def read_fingerprints(folder: Path) -> list[Row]:
    """Read fingerprints.csv as a list of rows of strings (`FINGERPRINT_FIELDS`)."""
    return list(untrusted.read_rows(folder / "fingerprints.csv", FINGERPRINT_FIELDS))
