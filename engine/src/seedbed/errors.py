"""The exception for an invalid request, and the exit statuses of commands."""

import errno
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Any

# In messages of torch.OutOfMemoryError, of CUDA and cuBLAS, and of the CPU's allocator.
_OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "DefaultCPUAllocator:")
# Variable: what lines on the terminal begin with, of one of parallel jobs.
LABEL = "SEEDBED_LABEL"


class InputError(Exception):
    """An invalid request (exit status 2). Its one-line message: expected, given, what
    to do."""

    status = 2


class LoaderWorkerDied(InputError):
    """A loader worker was killed, or exited. The request was valid (exit status 1)."""

    status = 1


class Interrupted(BaseException):
    """The run was asked to stop, and has saved all it needs to resume.

    As KeyboardInterrupt, no Exception: code that handles those must not handle this.
    """


class ChildFailed(Exception):
    """A process that rehearsed the run failed, as the run would: exit status, stderr,
    reason."""

    def __init__(self, status: int, output: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.output = output


def open_streams() -> None:
    """Open /dev/null for closed standard streams, or the next files would get their
    numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            # gets the lowest free number
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            setattr(sys, name, open(number, "w" if number else "r"))


@contextmanager
def exit_on_errors() -> Iterator[None]:
    """Exit instead of raising an error that users can cause; a command's work is done
    inside.

    The status is that of an `InputError`, 130 after Ctrl-C, and 141, as in a shell,
    after `command | head`. A command with `--json` also prints an `InputError` as JSON.
    """
    try:
        # set by cli.run during imports
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            yield
        finally:
            if isinstance(sys.exception(), SystemExit | None):
                # not at exit, where a closed pipe means exit status 120
                sys.stdout.flush()
    except InputError as error:
        if "--json" in sys.argv[1:]:
            print(json.dumps({"error": str(error)}), flush=True)
        sys.exit(print_error(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        discard_output(sys.stdout)
        sys.exit(141)
    except OSError as error:
        if error.filename or error.errno not in (
            errno.ENOSPC,
            errno.EDQUOT,
            errno.EFBIG,
        ):
            raise
        discard_output(sys.stdout)
        line = f"output: expected a file that can be written, got {error.strerror}"
        sys.exit(print_error(InputError(line)))


def print_error(error: InputError) -> int:
    """Print what an error says in one line; return the exit status for it."""
    line = f"{os.environ.get(LABEL, '')}error: {printable(str(error))}"
    print(line, file=sys.stderr, flush=True)
    return error.status


def one_line(error: BaseException, most: int = 200) -> str:
    """Return type and message of an exception on one line, of at most `most`
    characters."""
    text = str(error).strip()
    if "in DataLoader worker process" in text:  # then its message is a traceback
        return text.splitlines()[-1][:most]
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text}"[:most] if text else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether PyTorch could not allocate memory on a GPU or the CPU, also in a
    worker."""
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in _OUT_OF_MEMORY
    )


def some(values: Sequence[object], most: int = 1) -> str:
    """Return the first of several values, and how many more there are."""
    shown = ", ".join(map(str, values[:most]))
    more = len(values) - most
    return f"{shown} and {more:,} more" if more > 0 else shown


def discard_output(stream: IO[Any]) -> None:
    """Redirect a stream without a reader to /dev/null, also for processes started
    later."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def printable(text: str) -> str:
    """Escape what a terminal would act on or that cannot be encoded, but for line
    breaks."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
