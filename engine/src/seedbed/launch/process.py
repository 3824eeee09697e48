"""The processes of a run: started side by side, handed the signals that stop it, waited for."""

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from seedbed import project, signals

# The variable that names the file through which the processes of one machine find each other.
STORE = "SEEDBED_STORE"
# A training process that finds these works with others; ours are told anew.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", STORE),
)
_ENDING_SECONDS = 30.0  # for what a process does when another one has failed


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables by which torchrun, or a cluster, gives a process its rank."""
    return {name: value for name, value in environment.items() if name not in _RANKS}


class Processes:
    """Processes that run one command side by side; one alone is not told a rank."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], count: int = 1, **streams: Any
    ) -> None:
        """Start them. They keep our terminal and process group: Ctrl-C and breakpoint() work."""
        self._place = tempfile.TemporaryDirectory(prefix="seedbed-") if count > 1 else None
        self._late: list[subprocess.Popen[bytes]] = []  # what ended after we had asked it to
        self._all: list[subprocess.Popen[bytes]] = []
        for rank in range(count):
            variables = dict(environment)
            if self._place is not None:
                variables |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
                variables |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
                variables[STORE] = str(Path(self._place.name, "store"))
            here = project.root()  # what a configuration names, such as data.root, lies there
            self._all.append(subprocess.Popen(command, env=variables, cwd=here, **streams))

    def send_signal(self, number: int) -> None:
        """Send a signal to those that are alive."""
        for process in self._all:
            process.send_signal(number)

    def wait(self) -> int:
        """Return the exit status once all have ended; when one fails, the others are ended.

        A death by signal N, 128 + N as in a shell, explains the failures of others, and so does a
        crash (1). How a process ended that we had asked to, or killed, explains nothing.
        """
        if len(self._all) == 1:
            self._all[0].wait()
        while None in (codes := [process.poll() for process in self._all]):
            if any(map(_has_failed, codes)):
                self.end(_ENDING_SECONDS)
            time.sleep(0.02)
        if self._place is not None:
            self._place.cleanup()
        asked = (-signal.SIGTERM, -signal.SIGKILL)
        ended = [(process, int(process.returncode)) for process in self._all]
        own = [code for process, code in ended if process not in self._late or code not in asked]
        statuses = {code if code >= 0 else 128 - code for code in own} - {0}
        return min(statuses, key=lambda s: (s in signals.INTERRUPTED, s < 128, s), default=0)

    def end(self, seconds: float) -> None:
        """Ask those that are alive to stop, and kill what has not ended in time."""
        self._late = [process for process in self._all if process.poll() is None]
        for process in self._late:
            process.terminate()
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and any(each.poll() is None for each in self._late):
            time.sleep(0.02)
        for process in self._late:
            process.kill()
            process.wait()


def run_passing_signals(
    command: Sequence[str],
    environment: Mapping[str, str],
    count: int = 1,
    starting: AbstractContextManager[None] | None = None,
) -> int:
    """Run a command with stop signals passed on to it; return its exit status.

    Args:
        count: how many processes run it, see `Processes`.
        starting: the context that it is started in; `signals.held()` for a command that handles
            signals, but not in its first moments.
    """
    processes: Processes | None = None
    pending: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if processes is None:
            pending.append(number)
        else:
            processes.send_signal(number)

    with _handlers(pass_on):
        with starting or nullcontext():
            processes = Processes(command, environment, count)
        for number in pending:
            processes.send_signal(number)
        return processes.wait()


def _has_failed(code: int | None) -> bool:
    """Return whether a process ended, and not as the whole run does."""
    return code not in (None, 0, signals.DIFFERS, *signals.INTERRUPTED)


@contextmanager
def _handlers(handler: Any) -> Iterator[None]:
    """Handle stop signals for a while; threads other than the first cannot, and do not."""
    heeded = signals.heeded()
    try:
        before = [signal.signal(number, handler) for number in heeded]
    except ValueError:  # not the main thread: a launcher's
        yield
        return
    try:
        yield
    finally:
        for number, previous in zip(heeded, before, strict=True):
            signal.signal(number, previous)
