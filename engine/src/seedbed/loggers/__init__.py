"""Loggers: what metrics.csv holds, for the tools that people watch runs with.

metrics.csv is written always, first, and is the truth: it can be cut back to a checkpoint, and a
logger gets all of it when a run is resumed. A logger that fails is left behind by the run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from seedbed import record
from seedbed.config import build
from seedbed.errors import InputError, one_line


@dataclass(frozen=True)
class Entry:
    """A row of metrics.csv: values by `phase/column`, such as `train/loss`, after a step."""

    step: int
    values: dict[str, float]

    @classmethod
    def of_row(cls, row: Mapping[str, object]) -> "Entry":
        """Read a row as it is written to metrics.csv, or as it is read from there."""
        filled = {name: str(cell) for name, cell in row.items() if name not in ("step", "phase")}
        values = {f"{row['phase']}/{name}": float(text) for name, text in filled.items() if text}
        return cls(int(str(row["step"])), values)


@dataclass(frozen=True)
class Run:
    """What a logger gets when it opens."""

    folder: Path
    settings: Mapping[str, Any]  # the resolved configuration
    metric_name: str = "loss"  # what best.pt follows, such as `accuracy`
    # What metrics.csv holds already, where the run is resumed from a checkpoint. An earlier process
    # may have logged it, all or in part, and more that comes again.
    history: Sequence[Entry] = ()


class Logger(Protocol):
    """One logger of a run: `_target_(run, **the other keys of its YAML)` opens it."""

    def log(self, entry: Entry) -> None:
        """Log a row; it may wait in memory until the next `save`."""

    def log_figure(self, name: str, step: int, path: Path) -> None:
        """Log a picture, a PNG file; a logger without this function gets none."""

    def save(self) -> None:
        """Make sure that what was logged outlives this process, which may be killed."""

    def close(self, finished: bool) -> None:
        """Log no more; a run that is not `finished` may be resumed."""


class Loggers:
    """The loggers of a run, which get each row that the run logger writes."""

    def __init__(self, loggers: Mapping[str, Logger], warn: Callable[[str], None]) -> None:
        self._loggers, self._warn = dict(loggers), warn

    def note(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            self._each("log", Entry.of_row(row))

    def note_figure(self, name: str, step: int, path: Path) -> None:
        self._each("log_figure", name, step, path)

    def save(self) -> None:
        self._each("save")

    def close(self, finished: bool) -> None:
        self._each("close", finished)

    def _each(self, method: str, *arguments: object) -> None:
        """Call a method of each logger; one that fails is dropped, and the run continues."""
        for name, logger in list(self._loggers.items()):
            try:
                if method != "log_figure" or hasattr(logger, method):
                    getattr(logger, method)(*arguments)
            except Exception as error:  # whatever a library raises: the record matters more
                del self._loggers[name]
                self._warn(
                    f"warning: logger.{name}: expected a logger that works, got "
                    f"{one_line(error)}; the run continues without it, metrics.csv has everything"
                )


def open_all(run: Run, warn: Callable[[str], None]) -> Loggers:
    """Open the loggers of a run; if one does not open, close those before it: InputError."""
    opened: dict[str, Logger] = {}
    for name, spec in run.settings["logger"].items():
        try:
            opened[name] = build.build(spec, f"logger.{name}", run)
        except Exception as error:
            Loggers(opened, warn).close(finished=False)
            if isinstance(error, InputError):
                raise
            raise InputError(
                f"logger.{name}: expected a logger that opens, got {one_line(error)}; go without "
                "it: logger=csv"
            ) from error
    return Loggers(opened, warn)


def history(folder: Path) -> list[Entry]:
    return [Entry.of_row(row) for row in record.read_metrics(folder)]
