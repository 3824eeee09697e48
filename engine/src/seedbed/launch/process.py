"""A process that is started, handed the signals that stop a run, and waited for."""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from seedbed import signals

# A training process that finds these works with others; ours are told anew by our own torchrun.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)


def alone(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out the variables by which torchrun, or a cluster, gives a process its rank."""
    return {name: value for name, value in environment.items() if name not in _RANKS}


def run_passing_signals(
    command: Sequence[str],
    environment: Mapping[str, str],
    starting: AbstractContextManager[None] | None = None,
) -> int:
    """Run a command with stop signals passed on to it; return its exit status.

    The process keeps our terminal, so that a `breakpoint()` in a model works, and our process
    group, so that Ctrl-C reaches it. One killed by signal N gives 128 + N, as in a shell.

    Args:
        starting: the context that it is started in; `signals.held()` for a command that handles
            signals, but not in its first moments.
    """
    process: subprocess.Popen[bytes] | None = None
    pending: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        if process is None:
            pending.append(number)
        else:
            process.send_signal(number)

    with _handlers(pass_on):
        with starting or nullcontext():
            process = subprocess.Popen(command, env=dict(environment))
        for number in pending:
            process.send_signal(number)
        status = process.wait()
    return status if status >= 0 else 128 - status


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
