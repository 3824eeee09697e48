"""How a run asks the search that started it, after each validation, whether to go on.

It asks over a socket of this machine, so that the study is read and written by the
search alone, and a training process needs nothing of Optuna. The values themselves are
in metrics.csv.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Client, Listener
from pathlib import Path
from tempfile import TemporaryDirectory

from seedbed.record import Monitor

VARIABLE = "SEEDBED_SEARCH"  # environment variable of a run: the socket of its search
_MAX_BYTES = 1 << 12


def should_prune(monitor: Monitor) -> bool | None:
    """Return what the search decides; None if it is gone, as after a kill, or False
    without one."""
    if not (address := os.environ.get(VARIABLE)):
        return False
    asked = {"name": monitor.name, "higher_is_better": monitor.higher_is_better}
    try:
        with Client(address, "AF_UNIX") as search:
            search.send_bytes(json.dumps(asked).encode())
            return bool(json.loads(search.recv_bytes(_MAX_BYTES)))
    except (OSError, EOFError):
        return None


@contextmanager
def answering(decide: Callable[[Monitor], bool]) -> Iterator[None]:
    """Answer the runs that are started in a `with` block; raise what `decide` raised at
    its end."""
    errors: list[Exception] = []

    def serve(listener: Listener) -> None:
        while True:
            with listener.accept() as run:
                asked = json.loads(run.recv_bytes(_MAX_BYTES))
                if asked is None:
                    return
                try:
                    run.send_bytes(json.dumps(decide(Monitor(**asked))).encode())
                except Exception as error:  # without an answer, the run stops
                    errors.append(error)

    with TemporaryDirectory(prefix="seedbed-") as folder:
        address = str(Path(folder) / "search")
        with Listener(address, "AF_UNIX") as listener:
            thread = threading.Thread(target=serve, args=(listener,), daemon=True)
            thread.start()
            os.environ[VARIABLE] = address
            try:
                yield
            finally:
                del os.environ[VARIABLE]
                with suppress(OSError), Client(address, "AF_UNIX") as end:
                    end.send_bytes(b"null")
                thread.join()
    if errors:
        raise errors[0]
