"""How a loop of one's own ended: for its record and, after an error, for the terminal."""

import sys
from contextlib import suppress

from seedbed.worker import failure


def of(error: BaseException | None) -> tuple[str, str | None]:
    """Return the status of a loop that an exception left, and the reason in one line.

    Python prints the note that the exception gets after its traceback: the line of the loop that
    led to it, which is hard to find among those of libraries.
    """
    if error is None:
        return "finished", None
    found = failure.of(error)
    reason = " ".join(found.reason.split())
    if not isinstance(error, Exception):
        return "interrupted", reason
    line = f"error: {found.line}"
    with suppress(AttributeError, TypeError):  # frozen: it takes no note
        if line not in getattr(error, "__notes__", ()):
            error.add_note(line)
    return "failed", reason


def of_process() -> tuple[str, str | None]:
    """Return how a process ends that did not close its record; an error was printed by then."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return "interrupted", "the process ended before Recorder.close()"
    if isinstance(error, Exception):
        print(f"error: {failure.of(error).line}", file=sys.stderr)
    return of(error)
