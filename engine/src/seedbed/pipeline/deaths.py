"""Deaths of loader workers, raised where a batch is awaited and nowhere else.

PyTorch's handler of SIGCHLD raises a RuntimeError wherever the training process is: in
the middle of a step, or in code that handles RuntimeErrors of its own and takes this
for one. It is needed only while a batch is awaited: if a loader worker is killed while
it sends one, the training process would wait for the rest of it forever.
"""

import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any

from seedbed import signals
from seedbed.errors import LoaderWorkerDied

Workers = Collection[BaseProcess]


@contextmanager
def raised(workers: Workers) -> Iterator[None]:
    """Raise LoaderWorkerDied in a `with` block, also if a loader worker died before
    it."""
    _require_alive(workers)
    is_main = threading.current_thread() is threading.main_thread()
    handler = _handler if is_main else _Handler()  # other threads get no signals
    handler.has_raised = False
    handler.raises = True
    try:
        yield
    except Exception as error:
        if not _is_death(error) and not handler.has_raised:
            raise
    else:
        # what unpickles a batch may have handled it
        if not handler.has_raised:
            return
    finally:
        handler.raises = False
    _require_alive(workers)
    raise _death("exited")  # with status 0, or nobody knows which


def replace_handler() -> None:
    """Replace PyTorch's handler, which it sets when it makes its first loader."""
    handler = signal.getsignal(signal.SIGCHLD)
    module = getattr(handler, "__module__", "")
    if callable(handler) and module.startswith("torch.utils.data"):
        _handler.of_pytorch = handler
        signal.signal(signal.SIGCHLD, _handler)


def _require_alive(workers: Workers) -> None:
    for worker in workers:
        if status := worker.exitcode:  # None while it lives
            killer = signals.killed_by(128 - status) if status < 0 else None
            exited = f"exited with status {status}"
            raise _death(f"was killed by {killer}" if killer else exited)


def _death(how: str) -> LoaderWorkerDied:
    return LoaderWorkerDied(
        "data.num_workers: expected loader workers that live as long as the run, got"
        f" one that {how}; lower data.num_workers, data.prefetch_factor or"
        " data.batch_size"
    )


def _is_death(error: Exception) -> bool:
    return isinstance(error, RuntimeError) and str(error).startswith(
        "DataLoader worker (pid"
    )


class _Handler:
    """A handler of SIGCHLD that calls PyTorch's, and drops what that raises about a
    death while no batch is awaited."""

    def __init__(self) -> None:
        self.raises = False
        self.has_raised = False
        self.of_pytorch: Callable[[int, Any], Any] | None = None

    def __call__(self, number: int, frame: Any) -> None:
        assert self.of_pytorch is not None
        try:
            self.of_pytorch(number, frame)
        except RuntimeError as error:
            if not _is_death(error):
                raise
            if self.raises:
                self.has_raised = True
                raise


_handler = _Handler()
