"""How a loop of one's own ended: for its record and, after an error, for the terminal."""

import sys

from seedbed.errors import one_line


def of(error: BaseException | None) -> tuple[str, str | None]:
    """Return the status of a loop that an exception left, and the reason in one line."""
    if error is None:
        return "finished", None
    return "failed" if isinstance(error, Exception) else "interrupted", one_line(error)


def of_process() -> tuple[str, str | None]:
    """Return how a process ends that did not close its record; an error was printed by then."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return "interrupted", "the process ended before Recorder.close()"
    return of(error)
