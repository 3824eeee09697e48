"""Values and tables as text, and the output of a process, which train.log keeps."""

import csv
import errno
import io
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from seedbed.errors import LABEL, discard_output, printable


def show(value: Any) -> str:
    """Format a value as YAML does, numbers with all their digits."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"[{', '.join(map(show, value))}]" if isinstance(value, list) else str(value)


def aligned(rows: Sequence[Sequence[object]], gap: str = "  ") -> list[str]:
    """Return the lines of a table for a terminal, with control characters escaped."""
    cells = [
        [printable(str(cell)).replace("\n", "\\n") for cell in row] for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        gap.join(
            cell.ljust(width) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def of_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return the lines of a table of values by key; floats with six significant
    digits."""
    values = [[row.get(key, "-") for key in columns] for row in rows]
    cells = [
        [f"{x:.6g}" if isinstance(x, float) else show(x) for x in row] for row in values
    ]
    return aligned([columns, *cells])


def as_csv(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(
        [show(row[key]) if key in row else "" for key in columns] for row in rows
    )
    return text.getvalue()


def as_json(value: Any, indent: int | None = 2) -> str:
    """Serialize to JSON; non-finite numbers, which JSON lacks, become strings."""
    return json.dumps(_plain(value), indent=indent, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if value is None or isinstance(value, int | float) else str(value)


class Tee:
    """A stream that also writes to train.log, and keeps working without its
    terminal."""

    def __init__(self, stream: IO[str], log: IO[str]) -> None:
        self.stream = stream
        self._log = log
        self._label = os.environ.get(LABEL, "")
        # the beginning of a line, so that jobs do not write within others' lines
        self._held = ""

    def write(self, text: str) -> int:
        """Write to the log, ignoring its errors, and to the terminal, with its
        label."""
        with suppress(OSError, ValueError):  # the disk is full, or the log is closed
            self._log.write(text)
        if self._label:
            *lines, self._held = f"{self._held}{text}".split("\n")
            for line in lines:  # of progress that is written over itself, what remains
                last = line.rstrip("\r").rpartition("\r")[2]
                self._try(self.stream.write, f"{self._label}{last}\n")
        else:
            self._try(self.stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._try(self.stream.flush)

    def end(self) -> None:
        """Show the last line if nothing has ended it."""
        if self._held:
            self.write("\n")
        self.flush()

    def _try(self, act: Callable[..., object], *arguments: str) -> None:
        """Use the terminal; discard its output once it is closed or the pipe's reader
        is gone."""
        try:
            act(*arguments)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EPIPE, errno.ENOSPC):
                raise
            discard_output(self.stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def tee(path: Path) -> IO[str]:
    """Append stdout and stderr of this process to a file as well; return the file."""
    log = open(path, "a", buffering=1)
    sys.stdout, sys.stderr = Tee(sys.stdout, log), Tee(sys.stderr, log)
    return log


def quoted(path: Path) -> str:
    """Return a path as the value of an override, quoted as Hydra's grammar needs it."""
    unquoted = str(path)
    if re.fullmatch(r"[\w./-]+", unquoted):
        return unquoted
    return "'" + unquoted.replace("\\", "\\\\").replace("'", "\\'") + "'"


def resume_command(folder: Path) -> str:
    """Return the shell command that resumes a run or a sweep from the project's
    root."""
    if "MASTER_ADDR" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1":
        return "give the same command again"  # ranks of torchrun or srun
    return f"python scripts/resume.py {shlex.quote(str(folder))}"
