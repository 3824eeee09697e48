"""What a process prints: to its terminal as long as there is one, and to train.log."""

import errno
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from seedbed.errors import discard_output

# The variable that holds what each line begins with, where several runs share a terminal.
PREFIX = "SEEDBED_PREFIX"


class Terminal:
    """A stream that keeps working once its terminal, or the pipe's other end, was closed.

    Where runs share a terminal, lines are written whole, each with the run's prefix.
    """

    def __init__(self, stream: IO[str], prefix: str = "") -> None:
        self._stream, self._prefix = stream, prefix
        self._begun = ""  # of a line
        self._is_lost = False

    def write(self, text: str) -> int:
        """Write, unless the terminal is gone."""
        shown = text
        if self._prefix:
            *lines, self._begun = (self._begun + text).split("\n")
            shown = "".join(f"{self._prefix}{line}\n" for line in lines)
        with self._as_long_as_it_is_there():
            self._stream.write(shown)
        return len(text)

    def end_line(self) -> None:
        """Write what was begun of a line and held back."""
        if self._begun:
            self.write("\n")

    def flush(self) -> None:
        """Flush, unless the terminal is gone."""
        with self._as_long_as_it_is_there():
            self._stream.flush()

    @contextmanager
    def _as_long_as_it_is_there(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            self._lose(error.errno == errno.EPIPE)

    def _lose(self, is_pipe: bool) -> None:
        """Stop the run as a closed terminal does if the reader of a pipe went away.

        How it ended, and how to resume it, then goes to stderr as long as somebody reads that.
        """
        first, self._is_lost = not self._is_lost, True
        if is_pipe and first and self._stream is sys.__stdout__ and sys.__stderr__ is not None:
            os.dup2(sys.__stderr__.fileno(), self._stream.fileno())
            signal.raise_signal(signal.SIGHUP)
        else:
            discard_output(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class Tee:
    """A terminal stream whose text goes to train.log too."""

    def __init__(self, stream: Terminal, log: IO[str]) -> None:
        self.stream = stream
        self._log = log

    def write(self, text: str) -> int:
        """Write to the terminal, and to the log as far as the disk lets us."""
        with suppress(OSError, ValueError):  # the disk is full, or the log is closed
            self._log.write(text)
        return self.stream.write(text)

    def write_apart(self, shown: str, logged: str) -> None:
        """Write one text to the terminal and another to the log."""
        with suppress(OSError, ValueError):
            self._log.write(logged)
        self.stream.write(shown)

    def flush(self) -> None:
        """Flush both."""
        with suppress(OSError, ValueError):
            self._log.flush()
        self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def tee_output(path: Path) -> Iterator[IO[str]]:
    """Copy what the process prints into a file, after what the file holds already; yield it."""
    before = sys.stdout, sys.stderr
    log = open(path, "a", buffering=1)
    prefix = os.environ.get(PREFIX, "")
    terminals = [Terminal(stream, prefix) for stream in before]
    sys.stdout, sys.stderr = (Tee(terminal, log) for terminal in terminals)
    try:
        yield log
    finally:
        sys.stdout, sys.stderr = before
        for terminal in terminals:
            terminal.end_line()
        with suppress(OSError):
            log.close()


def resume_command(folder: Path) -> str:
    """Return the command that resumes a run or a sweep, for a shell in the project's root."""
    return f"python scripts/resume.py {shlex.quote(str(folder))}"
