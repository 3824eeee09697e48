"""The processes of a run: their environment, starting them, passing stop signals on, waiting."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf

from seedbed import determinism, project, signals

# The variable that names the file through which the processes of one machine find each other.
STORE = "SEEDBED_STORE"
# How processes find each other; the values set by a cluster or torchrun are not passed on.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", STORE),
)
_ENDING_SECONDS = 30.0  # for a process to end after another one has failed


def training_environment(config: DictConfig) -> dict[str, str]:
    """Return the environment variables that the training process starts with.

    Imports come from this project, not the current folder, which may be an untrusted record.
    """
    preset: Mapping[str, Any] = OmegaConf.to_container(config.determinism)  # type: ignore[assignment]
    environment = determinism.environment_variables(preset, os.environ)
    root = project.root()
    places = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    places = list(dict.fromkeys([*places, str(root / "src"), str(root)]))
    environment |= {"PYTHONPATH": os.pathsep.join(places), "PYTHONSAFEPATH": "1"}
    environment[project.PROJECT] = str(root)
    if "OMP_WAIT_POLICY" not in environment:
        # Threads that wait for each other spin on cores that other processes may need: next to two
        # busy processes, a step took many times as long. How long they spin changes no bit.
        if config.trainer.processes * (preset["threads"] or 1) > (os.cpu_count() or 1):
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        else:
            environment.setdefault("GOMP_SPINCOUNT", "100000")  # loop iterations, not 300,000
    return environment


class Processes:
    """Processes that run the same command in parallel; a single one gets no rank."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], count: int = 1, **streams: Any
    ) -> None:
        """Start the processes in our terminal and process group, for Ctrl-C and breakpoint()."""
        variables = {name: value for name, value in environment.items() if name not in _RANKS}
        self._place = tempfile.TemporaryDirectory(prefix="seedbed-") if count > 1 else None
        self._all: list[subprocess.Popen[bytes]] = []
        for rank in range(count):
            if self._place is not None:
                variables |= {"RANK": str(rank), "WORLD_SIZE": str(count)}
                variables |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
                variables[STORE] = f"{self._place.name}/store"
            here = project.root()  # paths such as data.root are relative to it
            self._all.append(subprocess.Popen(command, env=variables, cwd=here, **streams))

    def send_signal(self, number: int) -> None:
        for process in self._all:
            process.send_signal(number)

    def wait(self) -> int:
        """Wait for all processes and return the exit status; if one fails, end the others.

        Of several statuses, the likely cause is returned: first death by signal N (128 + N, as in
        a shell), then a crash (1). The death by signal of a process that we end does not count.
        """
        if len(self._all) == 1:
            self._all[0].wait()  # no others to watch: block
        expected = (None, 0, signals.DIFFERS, *signals.INTERRUPTED)
        while None in (codes := [process.poll() for process in self._all]):
            if any(code not in expected for code in codes):
                self.end(_ENDING_SECONDS)
                ended = zip(codes, self._all, strict=True)  # deaths since then are due to `end`
                codes = [max(each.returncode, 0) if code is None else code for code, each in ended]
                break
            time.sleep(0.02)
        if self._place is not None:
            self._place.cleanup()
        statuses = {code if code >= 0 else 128 - code for code in codes if code}
        return min(statuses, key=lambda s: (s in signals.INTERRUPTED, s < 128, s), default=0)

    def end(self, seconds: float) -> None:
        for process in self._all:
            if process.poll() is None:
                process.terminate()
        deadline = time.monotonic() + seconds
        for process in self._all:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0))
            process.kill()
            process.wait()


def run_passing_signals(
    command: Sequence[str], environment: Mapping[str, str], count: int = 1
) -> int:
    """Run a command in `count` processes with stop signals passed on; return the exit status.

    The processes start with stop signals blocked, until they call `signals.release`.
    """
    with signals.held():
        processes = Processes(command, environment, count)
        # Only the main thread can handle signals; a launcher may run us in another.
        is_main = threading.current_thread() is threading.main_thread()
        before = {
            number: signal.signal(number, lambda number, _: processes.send_signal(number))
            for number in (signals.heeded() if is_main else ())
        }
    try:
        return processes.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
