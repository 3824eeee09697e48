"""Output of a process: to its terminal as long as there is one, and to train.log."""

import errno
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from seedbed.errors import discard_output


class Tee:
    """A stream that also writes to train.log, and keeps working without its terminal."""

    def __init__(self, stream: IO[str], log: IO[str]) -> None:
        self.stream, self._log = stream, log

    def write(self, text: str) -> int:
        """Write to the log, ignoring its errors, and to the terminal."""
        with suppress(OSError, ValueError):  # the disk is full, or the log is closed
            self._log.write(text)
        self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def _try(self, act: Callable[..., object], *arguments: str) -> None:
        """Use the terminal; discard its output once it is closed or the pipe's reader is gone."""
        try:
            act(*arguments)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE):
                raise
            discard_output(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def tee_output(path: Path) -> Iterator[IO[str]]:
    """Append stdout and stderr to a file as well; yield the file."""
    before = sys.stdout, sys.stderr
    log = open(path, "a", buffering=1)
    sys.stdout, sys.stderr = (Tee(stream, log) for stream in before)
    try:
        yield log
    finally:
        sys.stdout, sys.stderr = before
        with suppress(OSError):
            log.close()


def resume_command(folder: Path) -> str:
    """Return the shell command that resumes a run or a sweep from the project's root."""
    return f"python scripts/resume.py {shlex.quote(str(folder))}"
