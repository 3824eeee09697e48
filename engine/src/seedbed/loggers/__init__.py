"""Loggers, which pass the rows of metrics.csv on to experiment trackers.

metrics.csv is always written, first, and is the source of truth: it can be truncated to
a checkpoint, and a logger gets all of it when a run is resumed. A run drops a logger
that fails.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from seedbed.config import build
from seedbed.errors import InputError, one_line
from seedbed.methods import Entry as Entry
from seedbed.methods import Run as Run

__all__ = ["Entry", "Run"]


def shown(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's settings as trackers show them: without the variables of its
    preset."""
    preset = {
        key: value for key, value in settings["determinism"].items() if key != "env"
    }
    return {**settings, "determinism": preset}


class Loggers:
    """The loggers of a run, which get each row that the run logger writes.

    `_target_(run, **the other keys of its YAML)` opens a logger: an object with these
    methods.

        log(entry): log a row; it may wait in memory until the next `save`.
        log_figure(name, step, path): log a figure, a PNG file; may be missing.
        save(): flush, so that the logged rows are kept if this process is killed.
        close(finished): end logging; a run that is not `finished` may be resumed.
    """

    def __init__(self, run: Run, warn: Callable[[str], None]) -> None:
        """Open them; if one fails, close the earlier ones and raise InputError."""
        self._loggers = dict[str, Any]()
        self._warn = warn
        for name, spec in run.settings["logger"].items():
            try:
                self._loggers[name] = build.build(spec, f"logger.{name}", run)
            except Exception as error:
                self.call("close", False)
                if isinstance(error, InputError):
                    raise
                install = ""
                if isinstance(error, ModuleNotFoundError):
                    install = f"pip install {error.name}, or "
                raise InputError(
                    f"logger.{name}: it could not start ({one_line(error)});"
                    f" {install}train without it: logger=csv"
                ) from error

    def note(self, rows: Iterable[Mapping[str, object]]) -> None:
        for row in rows:
            self.call("log", Entry.of_row(row))

    def call(self, method: str, *arguments: object) -> None:
        """Call a method of each logger; one that fails is dropped, and the run
        continues."""
        for name, logger in list(self._loggers.items()):
            try:
                if method != "log_figure" or hasattr(logger, method):
                    getattr(logger, method)(*arguments)
            # a library may raise anything; the record matters more
            except Exception as error:
                del self._loggers[name]
                self._warn(
                    f"warning: logger.{name} failed: {one_line(error)}; the run"
                    " continues without it, and metrics.csv has everything"
                )
