"""Python's logging and warnings in the processes of a run, configured as Hydra does it.

train.py passes `hydra.job_logging` and `hydra.verbose` on to them in an environment
variable. Names of loggers are followed by the process, unless it is rank 0: `my.data
(loader worker 1)`.
"""

import fcntl
import json
import logging
import logging.config
import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from seedbed.record import text

# variables: what Hydra has, and train.log
_ASKED = "SEEDBED_LOGGING"
_LOG = "SEEDBED_LOG"
_FORMAT = "[%(asctime)s][%(name)s][%(levelname)s] - %(message)s"  # Hydra's
_WARNING = re.compile(r".+:\d+: \w+: ")  # as `warnings.formatwarning` begins
_shown: set[str] = set()  # first lines of warnings
_read = [0]  # how far this process has read train.log for those of others, in bytes
_marks: list[str] = []  # of this process


def pass_on(config: Any, verbose: Any) -> None:
    """Pass on how to log, as plain values, to the processes that this one starts."""
    os.environ[_ASKED] = json.dumps({"config": config, "verbose": verbose})


@contextmanager
def kept(path: Path, *marks: str) -> Iterator[IO[str]]:
    """Append the output, and what is logged, to a file as well, and yield the file.

    Each warning is shown once.
    """
    root = logging.getLogger()
    before = warnings.showwarning
    streams = (sys.stdout, sys.stderr)
    handlers = root.handlers[:]
    level = root.level
    log = text.tee(path)
    tees: Any = sys.stdout, sys.stderr
    try:
        configure(path, *marks)
        yield log
    finally:  # the standard output is another one from here on
        root.handlers[:], warnings.showwarning = handlers, before
        root.setLevel(level)
        for tee in tees:
            tee.end()
        sys.stdout, sys.stderr = streams
        with suppress(OSError):
            log.close()


def configure(log: Path, *marks: str) -> None:
    asked: dict[str, Any] = json.loads(os.environ.get(_ASKED, "{}"))
    config = asked.get("config")
    verbose = asked.get("verbose", False)
    if not asked:  # by a command other than train.py
        logging.basicConfig(
            stream=sys.stdout, level=logging.INFO, format=_FORMAT, force=True
        )
    elif config and config.get("root"):
        handlers = config.get("handlers", {})
        for name, handler in handlers.items() if len(handlers) > 1 else ():
            # Hydra's default writes to train.log as well, which has all output already.
            if Path(str(handler.get("filename"))).name == log.name:
                handlers[name] = {"class": "logging.NullHandler"}
        logging.config.dictConfig(config)
    for name in verbose if isinstance(verbose, list) else [verbose] if verbose else []:
        logging.getLogger(None if name is True else name).setLevel(logging.DEBUG)
    os.environ[_LOG], warnings.showwarning = str(log), _show
    mark(*marks)


def mark(*names: str) -> None:
    """Let the names of loggers be followed by these, of this process."""
    if not _marks and names:
        make = logging.getLogRecordFactory()

        def marked(*args: Any, **how: Any) -> logging.LogRecord:
            record = make(*args, **how)
            record.name += f" ({', '.join(_marks)})"
            return record

        logging.setLogRecordFactory(marked)
    _marks.extend(name for name in names if name not in _marks)


def start_loader_worker(number: int) -> None:
    """Configure a loader worker of a run; one that was forked shares the output of its
    parent."""
    if _LOG in os.environ and warnings.showwarning is not _show:
        text.tee(Path(os.environ[_LOG]))
        configure(Path(os.environ[_LOG]))
    mark(f"loader worker {number}")


def _show_once(
    message: Any, category: type[Warning], file: str, line: int, *_: Any
) -> None:
    """Print a warning with its origin, unless a process of this run has done so."""
    said = warnings.formatwarning(message, category, file, line)
    key = said.partition("\n")[0]
    if key in _shown:
        return
    with suppress(OSError), open(os.environ[_LOG], "rb") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        # Only what has been added since the last warning: the log of a long run is
        # large.
        log.seek(_read[0])
        lines = log.read().decode(errors="replace").splitlines()
        _read[0] = log.tell()
        _shown.update(filter(_WARNING.match, lines))
        if key not in _shown:
            print(end=said, file=sys.stderr, flush=True)
        _shown.add(key)


_show: Any = _show_once  # mypy knows another signature
