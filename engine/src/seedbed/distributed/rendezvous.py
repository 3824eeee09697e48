"""How the processes of a run find each other: by a file of train.py, or a store at an address.

python -m seedbed.distributed.rendezvous STATUS: rank 0 tells the others to end with this status.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta

from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from seedbed.distributed.processes import ProcessGroup
from seedbed.errors import InputError, Interrupted, exit_status, one_line
from seedbed.launch import STORE

_ATTEMPT_SECONDS = 10.0  # to connect, which no signal interrupts


def find(
    seconds: float, stop_requested: Callable[[], bool] = lambda: False, group: str = ""
) -> ProcessGroup:
    """Connect to the store of a run, or of a group of processes beside it, such as `first`.

    Raise InputError if that takes more than `seconds`, which are also the group's timeout.
    """
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if path := os.environ.get(STORE):
        return ProcessGroup(FileStore(path + group, count), rank, count, seconds)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    is_torchruns = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    leads = rank == 0 and not is_torchruns and not group
    attempt, deadline = min(seconds, _ATTEMPT_SECONDS), time.monotonic() + seconds
    store: Store | None = None
    while store is None:  # under srun, rank 0 serves the store once it has composed the run
        try:
            store = TCPStore(
                host, port, None, leads, timedelta(seconds=attempt), wait_for_workers=False
            )
        except RuntimeError as error:
            if stop_requested():
                raise Interrupted from None
            if is_torchruns or time.monotonic() > deadline:  # torchrun's was there before us
                raise InputError(
                    f"MASTER_ADDR, MASTER_PORT: expected a store that rank 0 or torchrun serves at "
                    f"{host}:{port} within {seconds:g} s, got {one_line(error)}"
                ) from None
    store.set_timeout(timedelta(seconds=seconds))
    # torchrun keeps the store when it restarts its processes (--max-restarts).
    run, restart = (os.environ.get(f"TORCHELASTIC_{n}", "") for n in ("RUN_ID", "RESTART_COUNT"))
    own = PrefixStore(f"seedbed/{run}/{restart}/{group}", store)
    return ProcessGroup(own, rank, count, seconds)


def dismiss() -> int:
    group = find(seconds=60.0)  # for the others to import PyTorch
    group.publish({"status": int(sys.argv[1])})
    if "TORCHELASTIC_USE_AGENT_STORE" not in os.environ:  # the store ends with this process
        group.wait_until_received()
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(dismiss))
