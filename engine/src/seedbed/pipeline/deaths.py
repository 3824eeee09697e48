"""Deaths of loader workers, raised where a batch is awaited and nowhere else.

PyTorch's handler of SIGCHLD raises a RuntimeError wherever the training process is: in
the middle of a step, or in code that handles RuntimeErrors of its own and takes this
for one. It is needed only while a batch is awaited: if a loader worker is killed while
it sends one, the training process would wait for the rest of it forever.
"""

import re
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import Any

from seedbed import signals
from seedbed.errors import LoaderWorkerDied

# What has loader workers, and what makes them need more memory.
_SETTINGS = ("data.num_workers", "data.prefetch_factor", "data.batch_size")


def begun(
    begin: Callable[[], Iterator[Any]], settings: Sequence[str] = _SETTINGS
) -> Iterator[Any]:
    """Return what the `iter` of a DataLoader returns; `next_of` is to be its `next`."""
    try:
        batches = begin()
    except RuntimeError as error:
        if _pid_of_dead(error) is None:
            raise
        raise _death("ended", settings) from None
    _handler.pids.update(worker.pid for worker in _workers_of(batches))
    _replace_handler()
    return batches


def next_of(batches: Iterator[Any], settings: Sequence[str] = _SETTINGS) -> Any:
    """Return the next batch; raise LoaderWorkerDied if a loader worker has died."""
    try:
        with _raised(_workers_of(batches), settings):
            return next(batches)
    except LoaderWorkerDied:
        # It may wait for the rest of a batch, and PyTorch would wait for its end.
        vars(batches).pop("_pin_memory_thread", None)
        raise


def require_alive(batches: Iterator[Any]) -> None:
    """Raise LoaderWorkerDied, also if code of the user's has taken the exit status."""
    workers = _workers_of(batches)
    _require_alive(workers, _SETTINGS)
    if connection.wait([worker.sentinel for worker in workers], timeout=0):
        raise _death("ended", _SETTINGS)


def _workers_of(batches: Iterator[Any]) -> Collection[BaseProcess]:
    return getattr(batches, "_workers", ())  # there are none in this process


@contextmanager
def _raised(
    workers: Collection[BaseProcess], settings: Sequence[str]
) -> Iterator[None]:
    """Raise LoaderWorkerDied in a `with` block, also if a loader worker died before
    it."""
    _require_alive(workers, settings)
    is_main = threading.current_thread() is threading.main_thread()
    handler = _handler if is_main else _Handler()  # other threads get no signals
    handler.has_raised = False
    handler.raises = True
    try:
        yield
    except Exception as error:
        if _pid_of_dead(error) not in _handler.pids and not handler.has_raised:
            raise
    else:
        # what unpickles a batch may have handled it
        if not handler.has_raised:
            return
    finally:
        handler.raises = False
    _require_alive(workers, settings)
    raise _death("ended", settings)


def _replace_handler() -> None:
    """Replace PyTorch's handler, which it sets when it makes its first loader."""
    handler = signal.getsignal(signal.SIGCHLD)
    module = getattr(handler, "__module__", "")
    if callable(handler) and module.startswith("torch.utils.data"):
        _handler.of_pytorch = handler
        signal.signal(signal.SIGCHLD, _handler)


def _require_alive(workers: Collection[BaseProcess], settings: Sequence[str]) -> None:
    for worker in workers:
        status = worker.exitcode  # None while it lives
        if status is not None:
            killer = signals.killed_by(128 - status) if status < 0 else None
            if killer is None:
                raise _death(f"exited with status {status}", settings)
            raise _death(f"was killed by {killer}", settings, is_killed=True)


def _death(
    how: str, settings: Sequence[str], is_killed: bool = False
) -> LoaderWorkerDied:
    first, *others, last = settings
    remedy = f"lower {', '.join([first, *others])} or {last}"
    if not is_killed:
        remedy = f"look for what it printed, set {first}=0, or {remedy}"
    return LoaderWorkerDied(
        f"{first}: expected loader workers that live as long as the run, got one that"
        f" {how}; {remedy}"
    )


def _pid_of_dead(error: Exception) -> int | None:
    """Return the process that PyTorch says has died; None for other errors."""
    if not isinstance(error, RuntimeError):
        return None
    match = re.match(r"DataLoader worker \(pid(?:\(s\))? (\d+)", str(error))
    return None if match is None else int(match[1])


class _Handler:
    """A handler of SIGCHLD that calls PyTorch's, and drops what that raises about one
    of the engine's loader workers while no batch is awaited."""

    def __init__(self) -> None:
        self.raises = False
        self.has_raised = False
        self.pids: set[int | None] = set()  # of the engine's loader workers
        self.of_pytorch: Callable[[int, Any], Any] | None = None

    def __call__(self, number: int, frame: Any) -> None:
        assert self.of_pytorch is not None
        try:
            self.of_pytorch(number, frame)
        except RuntimeError as error:
            if _pid_of_dead(error) not in self.pids:
                raise
            if self.raises:
                self.has_raised = True
                raise


_handler = _Handler()
