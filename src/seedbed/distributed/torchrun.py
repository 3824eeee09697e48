"""torchrun with exit statuses that say what happened, and no traceback of its own.

python -m seedbed.distributed.torchrun TORCHRUN_OPTIONS -m seedbed.distributed.worker RUN_FOLDER

torchrun exits with 1 whatever its processes exit with. This exits as they did: 2 for a request
that cannot be served, 129, 130 or 143 after an interruption, 128 + N after a death by signal N.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from seedbed import record, signals
from seedbed.errors import InputError, exit_status

WORKER = "seedbed.distributed.worker"
# What summary.json says of a run that ended in peace although torchrun was asked to stop it.
# One that is still running was killed, because it did not stop in time.
_STATUSES = {"finished": 0, "failed": 2, "running": 128 + signal.SIGKILL}
SHUTDOWN_SECONDS = 600


def main() -> int:
    """Run torchrun with our arguments; return the exit status of the run."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.CRITICAL)  # the processes speak for themselves
    # A process that is asked to stop ends its step and saves a checkpoint: give it the time.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    handle_signals(SignalException)
    try:
        run.main(["--signals-to-handle=SIGQUIT", *sys.argv[1:]])
    except ChildFailedError as error:
        return status_of(failure.exitcode for failure in error.failures.values())
    except SignalException as error:
        folder = sys.argv[sys.argv.index(WORKER) + 1]
        return status_after(error.sigval, Path(folder))
    except RuntimeError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise InputError(
            "--master-port: expected a free port, got one in use; choose another"
        ) from None
    return 0


def status_of(codes: Iterable[int]) -> int:
    """Return the exit status of a run whose processes ended with these, in this order.

    A death by signal (negative) explains the others' failures, and so does a crash (1). But when
    one has failed, torchrun ends the others by SIGTERM, and by SIGKILL where that did not help.
    """
    first, *later = codes
    own = [first, *(code for code in later if code not in (-signal.SIGTERM, -signal.SIGKILL))]
    code = min(own, key=lambda code: (code == -signal.SIGTERM, code))
    return code if code >= 0 else 128 - code


def handle_signals(interruption: type[Exception]) -> None:
    """Let stop signals raise what torchrun passes on to its processes.

    One Ctrl-C can come twice, from the terminal and from train.py; torchrun's own handler would
    take the second one for a reason to leave its processes behind.
    """
    since = [float("-inf")]

    def handle(number: int, _frame: object) -> None:
        if time.monotonic() - since[0] > 1:
            since[0] = time.monotonic()
            raise interruption(f"signal {number}", signal.Signals(number))

    for number in signals.heeded():
        signal.signal(number, handle)
    signals.release()


def status_after(number: int, folder: Path) -> int:
    """Return the exit status after an interruption, by what the record says became of the run."""
    try:
        status = record.read_summary(folder)["status"]
    except (InputError, KeyError):
        status = None
    return _STATUSES.get(status, 128 + number)


if __name__ == "__main__":
    sys.exit(exit_status(main))
