"""Loggers, which pass the rows of metrics.csv on to experiment trackers.

metrics.csv is always written, first, and is the source of truth: it can be truncated to a
checkpoint, and a logger gets all of it when a run is resumed. A run drops a logger that fails.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seedbed.config import build
from seedbed.errors import InputError, one_line


@dataclass(frozen=True)
class Entry:
    """A row of metrics.csv: values by `phase/column`, such as `train/loss`, after a step."""

    step: int
    values: dict[str, float]

    @classmethod
    def of_row(cls, row: Mapping[str, object]) -> "Entry":
        """Convert a row of metrics.csv, before it is written or after it is read."""
        filled = {name: str(cell) for name, cell in row.items() if name not in ("step", "phase")}
        values = {f"{row['phase']}/{name}": float(text) for name, text in filled.items() if text}
        return cls(int(str(row["step"])), values)


@dataclass(frozen=True)
class Run:
    """A run, as passed to the constructor of a logger."""

    folder: Path
    settings: Mapping[str, Any]  # the resolved configuration
    metric_name: str = "loss"  # the metric that best.pt follows, such as `accuracy`
    # The rows of metrics.csv so far, if the run is resumed from a checkpoint. An earlier process
    # may have logged all or some of them, and later rows that will come again.
    history: Sequence[Entry] = ()


class Loggers:
    """The loggers of a run, which get each row that the run logger writes.

    `_target_(run, **the other keys of its YAML)` opens a logger: an object with these methods.

        log(entry): log a row; it may wait in memory until the next `save`.
        log_figure(name, step, path): log a figure, a PNG file; may be missing.
        save(): flush, so that the logged rows are kept if this process is killed.
        close(finished): end logging; a run that is not `finished` may be resumed.
    """

    def __init__(self, run: Run, warn: Callable[[str], None]) -> None:
        """Open them; if one fails, close the earlier ones and raise InputError."""
        self._loggers, self._warn = dict[str, Any](), warn
        for name, spec in run.settings["logger"].items():
            try:
                self._loggers[name] = build.build(spec, f"logger.{name}", run)
            except Exception as error:
                self.call("close", False)
                if isinstance(error, InputError):
                    raise
                raise InputError(
                    f"logger.{name}: expected the logger to open, got {one_line(error)}; train "
                    "without it: logger=csv"
                ) from error

    def note(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            self.call("log", Entry.of_row(row))

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of each logger; one that fails is dropped, and the run continues."""
        for name, logger in list(self._loggers.items()):
            try:
                if method != "log_figure" or hasattr(logger, method):
                    getattr(logger, method)(*arguments)
            except Exception as error:  # a library may raise anything; the record matters more
                del self._loggers[name]
                self._warn(
                    f"warning: logger.{name} failed: {one_line(error)}; the run continues without "
                    "it, and metrics.csv has everything"
                )
