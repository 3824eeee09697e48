"""The one exception that stands for an invalid request, and the exit statuses of commands."""

import os
import signal
import sys
from collections.abc import Callable
from typing import IO, Any


class InputError(Exception):
    """Say in one line what was expected, what was given, and what to do: exit status 2."""


class Interrupted(Exception):
    """The run was asked to stop, and everything that it needs to be resumed is saved."""


def exit_status(main: Callable[[], int]) -> int:
    """Run a command and turn what users can cause into one line and an exit status.

    Returns:
        What `main` returns; 2 after an `InputError`; 130 after Ctrl-C; 141 when the reader of our
        output went away (`command | head`), as a shell reports it.
    """
    try:
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as train.py has it while it imports
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = main()
        sys.stdout.flush()  # here, and not at exit, where a reader that went away is status 120
        return status
    except InputError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_output(sys.stdout)
        return 141


def print_error(error: InputError) -> int:
    """Print why a request is invalid; return the exit status for it."""
    print(f"error: {printable(str(error))}", file=sys.stderr, flush=True)
    return 2


def one_line(error: BaseException, most: int = 200) -> str:
    """Return type and message of an exception in one line of so many letters at most.

    Of an error in a loader worker, whose traceback is the message, that is the last line of it.
    """
    text = str(error).strip()
    if "in DataLoader worker process" in text:
        return text.splitlines()[-1][:most]
    text = " ".join(text.split())
    return f"{type(error).__name__}: {text}"[:most] if text else type(error).__name__


def discard_output(stream: IO[Any]) -> None:
    """Send a stream that nobody reads any more to /dev/null, in processes started later, too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def printable(text: str) -> str:
    """Return a text without what a terminal would act on, or that cannot be encoded: escaped.

    Names and values of a record may come from a stranger. Line breaks stay.
    """
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
