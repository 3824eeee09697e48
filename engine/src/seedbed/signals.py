"""The signals that ask a run to stop: holding them back, ignoring them, handling
them."""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

# Ctrl-C; `kill` and clusters; a closed terminal; Slurm's `--signal`, before a time
# limit; submitit's.
STOP_SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGUSR1, signal.SIGUSR2),
)
INTERRUPTED = frozenset(128 + number for number in STOP_SIGNALS)  # exit statuses
DIFFERS = 3  # the exit status of a replay that stopped where it differs from its record
PRUNED = 4  # that of a training process which its search has stopped


def handled_signals() -> list[signal.Signals]:
    """Return the stop signals that this process does not ignore (`nohup` ignores
    SIGHUP)."""
    return [
        number for number in STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN
    ]


@contextmanager
def held() -> Iterator[None]:
    """Block stop signals in a `with` block; processes started in it block them until
    `release`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release() -> None:
    """Unblock the stop signals that the parent process blocked; see `held`."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def ignore() -> None:
    """Ignore stop signals from now on, including pending ones."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    release()


def end_with_parent() -> None:
    """End this process within a second after its parent has ended, however that was
    killed."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def killed_by(status: int) -> str | None:
    """Return the signal, with a hint, behind an exit status; None if none or a stop
    signal."""
    number = status - 128
    if number not in set(signal.Signals) - set(STOP_SIGNALS):
        return None
    causes = {
        signal.SIGKILL: ", perhaps because memory ran out",
        signal.SIGBUS: ", perhaps because /dev/shm is full",
    }
    return signal.Signals(number).name + causes.get(signal.Signals(number), "")


_come = 0  # stop signals, in this process
_raised: type[BaseException] | None = None  # in a block of `raising`
# Most batches are loaded in less; Slurm and torchrun wait 30 seconds before they kill.
_PATIENCE_SECONDS = 2


def have_come() -> bool:
    """Return whether this process was sent a stop signal."""
    return _come > 0


def undisturbed(make: Callable[[], T]) -> T:
    """Return what `make` returns, called again if a stop signal came meanwhile."""
    while True:
        before = _come
        try:
            made = make()
        except Exception:
            if _come == before:
                raise
        else:
            if _come == before:
                return made


@contextmanager
def raising(error: type[BaseException]) -> Iterator[None]:
    """Raise an error at the end of a `with` block of the main thread if a stop signal
    has come.

    If the block does not end within two seconds of it, raise the error in the block: it
    may wait for what never comes. Not at once, as code in it may handle errors, such as
    a data set that takes another sample if reading one fails, and writes it to a cache.
    """
    global _raised
    _raised = error
    try:
        if have_come():
            raise error
        yield
    except Exception:
        if not have_come():
            raise
    finally:
        _raised = None
    if have_come():
        raise error


class Stop:
    """A request to stop the run, acted on between two steps."""

    def __init__(self) -> None:
        """Handle stop signals from now on, including pending ones."""
        global _come
        _come = 0
        self.signal: int | None = None
        self._status: int | None = None
        self._since = 0.0
        self._is_overdue = False
        self._parent = os.getppid()
        for number in handled_signals():
            signal.signal(number, self._ask)
        self._mask: set[int] = set()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._release, after_in_child=self._leave
        )
        release()

    def requested(self) -> bool:
        """Return whether a signal or `ask` requested a stop, or the parent process has
        died."""
        return bool(self.signal or self._status) or os.getppid() != self._parent

    def ask(self, status: int) -> None:
        """Stop between two steps, with this exit status."""
        self._status = status

    def status(self) -> int:
        if self._status is not None and self.signal is None:
            return self._status
        # without a signal: another process got it
        return 128 + (self.signal or signal.SIGTERM)

    def _hold(self) -> None:
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)

    def _release(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    def _leave(self) -> None:
        """Let these signals end a process that user code forks, also if one came
        meanwhile."""
        for number in STOP_SIGNALS:
            if signal.getsignal(number) == self._ask:
                signal.signal(number, signal.SIG_DFL)
        self._release()

    def _ask(self, number: int, _frame: object) -> None:
        global _come
        if self._is_overdue:
            self._is_overdue = False
            if _raised is not None:
                raise _raised
            return
        _come += 1
        # One Ctrl-C can arrive twice, from the terminal and from train.py; a second one
        # by the user comes more than a second later.
        if self.signal is None:
            self.signal = number
            self._since = time.monotonic()
            if _raised is not None:
                # no threading.Thread, whose start may need a lock that is held here
                _thread.start_new_thread(self._end_block_later, (number,))
        # end the process at once, as SIGKILL would
        elif time.monotonic() - self._since > 1:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _end_block_later(self, number: int) -> None:
        """Let the handler raise in a block that goes on; a signal also ends the wait of
        a system call."""
        time.sleep(_PATIENCE_SECONDS)
        if _raised is None:  # the block has ended
            return
        self._is_overdue = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)
