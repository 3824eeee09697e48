"""torchrun with exit statuses that say what happened, and no traceback of its own.

python -m seedbed.distributed.torchrun TORCHRUN_OPTIONS -m seedbed.distributed.worker RUN_FOLDER

torchrun exits with 1 whatever its processes exit with. This exits as they did: 2 for a request
that cannot be served, 129, 130 or 143 after an interruption, 128 + N after a death by signal N.
"""

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable

from seedbed import signals
from seedbed.errors import InputError, exit_status

SHUTDOWN_SECONDS = 600
# The variable that names the file in which a process leaves its exit status. torchrun does not pass
# it on after a signal, and a record on a full disk cannot say it.
STATUS = "SEEDBED_STATUS"
_KILLED = 128 + signal.SIGKILL


def main() -> int:
    """Run torchrun with our arguments; return the exit status of the run."""
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    logging.disable(logging.CRITICAL)  # the processes speak for themselves
    # A process that is asked to stop ends its step and saves a checkpoint: give it the time.
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_SECONDS))
    handle_signals(SignalException)
    with tempfile.NamedTemporaryFile("r", prefix="seedbed-status-") as left:
        os.environ[STATUS] = left.name
        leave_status(0)  # so that later ones need no room on the disk
        try:
            run.main(["--signals-to-handle=SIGQUIT", *sys.argv[1:]])
        except ChildFailedError as error:
            return status_of(failure.exitcode for failure in error.failures.values())
        except SignalException as error:
            begun, status = left.read().split()
            return int(status) if int(begun) else 128 + error.sigval
        except RuntimeError as error:
            if "EADDRINUSE" not in str(error):
                raise
            raise InputError(
                "--master-port: expected a free port, got one in use; choose another"
            ) from None
    return 0


def leaving_status(work: Callable[[], int]) -> int:
    """Do the work, leave the exit status that it ends with to torchrun, and return it.

    Only one process of a machine leaves it, and only where our torchrun started it. Until the work
    ends, the process counts as killed.
    """
    if os.environ.get("LOCAL_RANK") != "0" or STATUS not in os.environ:
        return work()
    leave_status(1, _KILLED)
    status = 1
    try:
        status = work()
    except InputError:
        status = 2
        raise
    finally:
        leave_status(1, status)
    return status


def leave_status(begun: int, status: int = 0) -> None:
    """Write whether a process began to work, and its exit status, in as many bytes each time."""
    with open(os.environ[STATUS], "r+") as file:
        file.write(f"{begun} {status:3}\n")


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


if __name__ == "__main__":
    sys.exit(exit_status(main))
