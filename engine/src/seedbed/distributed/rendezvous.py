"""How the processes of a run find each other: by a file of train.py, or a store at an
address.
"""

import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from torch.distributed import FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from seedbed.distributed.processes import ProcessGroup
from seedbed.errors import InputError, Interrupted, one_line
from seedbed.launch import STORE
from seedbed.ranks import RUN

_ATTEMPT_SECONDS = 2.0  # to connect, which no signal interrupts


def find(
    seconds: float, stop_requested: Callable[[], bool] = lambda: False, group: str = ""
) -> ProcessGroup:
    """Connect to the store of a run, or of a group of processes beside it, such as
    `first`.

    Raise InputError if that takes more than `seconds`, which are also the group's
    timeout.
    """
    if path := os.environ.get(STORE):
        file = FileStore(path + group, int(os.environ["WORLD_SIZE"]))
        return ProcessGroup(file, seconds, stop_requested)
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    leads = os.environ["RANK"] == "0" and not _is_torchruns() and not group
    attempt = min(seconds, _ATTEMPT_SECONDS)
    deadline = time.monotonic() + seconds
    store: Store | None = None
    # under srun, rank 0 serves the store once it has composed the run
    while store is None:
        try:
            store = TCPStore(
                host,
                port,
                None,
                leads,
                timedelta(seconds=attempt),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            if stop_requested():
                raise Interrupted from None
            if time.monotonic() > deadline:
                raise InputError(
                    "MASTER_ADDR, MASTER_PORT: expected a store that rank 0 or"
                    f" torchrun serves at {host}:{port} within {seconds:g} s, got"
                    f" {one_line(error)}"
                ) from None
    store.set_timeout(timedelta(seconds=seconds))
    return ProcessGroup(PrefixStore(_prefix(group), store), seconds, stop_requested)


def _prefix(group: str) -> str:
    """Return what the keys of a group begin with, in a store that others may use.

    torchrun keeps it when it restarts its processes (--max-restarts); steps of a Slurm
    job that were given one MASTER_PORT would meet in it.
    """
    names = (
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
    )
    return "/".join(["seedbed", *(os.environ.get(name, "") for name in names), group])


def dismiss(arguments: Sequence[str]) -> int:
    """Tell the other ranks, as rank 0, to end with a status: the only argument."""
    group = find(5.0 if _is_torchruns() else 60.0)  # for the others to import PyTorch
    group.publish(RUN, {"status": int(arguments[0])})
    if not _is_torchruns():  # the store ends with this process
        group.wait_until_acknowledged()
    return 0


def _is_torchruns() -> bool:
    """Return whether torchrun serves the store, from before its ranks start."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
