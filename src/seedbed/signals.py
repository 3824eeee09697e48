"""The signals that ask a run to stop, and how processes hand them to each other."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager

# Ctrl-C, what `kill` and clusters send, and a terminal that is closed.
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = frozenset(128 + number for number in STOP_SIGNALS)  # exit statuses


def heeded() -> list[signal.Signals]:
    """Return the stop signals that this process was not told to ignore, as `nohup` tells it."""
    return [number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def held() -> Iterator[None]:
    """Hold stop signals back, here until the end and in processes started here until `release`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release() -> None:
    """Let the signals through that the process which started this one held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def ignore() -> None:
    """Ignore stop signals, from now on and those that were held back."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    release()
