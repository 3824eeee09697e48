"""A sweep from its start to its report, and each of its jobs.

A job is started, resumed if its run has begun, or skipped if it has finished.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from seedbed import launch, record, signals
from seedbed.config import compose, entries
from seedbed.errors import InputError, print_error, printable
from seedbed.record import Origin, code, files, untrusted
from seedbed.sweeps import plan

_SWEEP = "SEEDBED_SWEEP"  # environment variable: id of the process that leads
_SAVING_SECONDS = 60.0


def start(config: DictConfig, folder: Path, templates: Mapping[str, str] = {}) -> int:
    """Train in a job's folder, in a new process unless it has finished; return the exit status.

    The sweep ends with exit status 2 if the job was begun with other settings.
    """
    in_parallel, launcher = os.environ.get(_SWEEP) != str(os.getpid()), os.getppid()
    if in_parallel:
        # Jobs share the terminal and the cores; that waiting threads sleep changes no bit.
        os.environ.setdefault("TQDM_DISABLE", "1")
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if not (folder / "config.yaml").exists():
        status = launch.start(config, folder, templates)
    elif changed := changed_setting(config, folder):
        raise SystemExit(print_error(InputError(changed)))  # a sweep of two settings helps nobody
    elif is_finished(folder):
        status = 0
    else:
        status = launch.resume_run(folder, (), allow_changed=False)
    is_stopping = in_parallel and status in signals.INTERRUPTED  # other jobs are still saving
    until = time.monotonic() + _SAVING_SECONDS
    while is_stopping and os.getppid() == launcher and time.monotonic() < until:
        time.sleep(0.1)
    if in_parallel and os.getppid() != launcher:
        os._exit(status)  # the sweep has ended: no queued job may start
    return status


def is_finished(folder: Path) -> bool:
    return record.is_run(folder) and record.read_summary(folder).get("status") == "finished"


def changed_setting(config: DictConfig, folder: Path) -> str | None:
    """Return a line on the first setting that a job was begun without and that can alter bits."""
    before, now = untrusted.read_dict(folder), OmegaConf.to_container(config)
    asked = [p for p, name, x in entries(now) if name == "statistics" and x is None]
    for change in record.changes(Origin(before, {}), Origin(now, {})):  # type: ignore[arg-type]
        is_filled = any(f"{change.key}.".startswith(f"{place}.") for place in asked)
        if change.alters_bits and not is_filled:
            return (
                f"{change.key}: expected {change.before} as in {folder}, got {change.now}; undo "
                "that, or choose another hydra.sweep.dir"
            )
    return None


def describe_finished(folder: Path) -> None:
    """Print how many jobs of a sweep are skipped, and what changed since they ran."""
    runs, origins = list[Path](), list[Origin]()
    for run in record.runs_below(folder):
        with suppress(InputError):  # a damaged record: its job will name it
            if is_finished(run):
                runs.append(run)
                origins.append(Origin({}, record.read_json(run / "environment.json")))
    if not runs:
        return
    several = "jobs were finished before and are" if len(runs) > 1 else "job was finished and is"
    print(f"{len(runs)} {several} skipped", flush=True)
    known = {k: v for of in origins for k, v in of.environment.get("files_sha256", {}).items()}
    if changed := code.changed_here(*origins) + files.changed(known):
        line = f"warning: code or data have changed since they ran: {code.some(changed)}"
        print(printable(line), file=sys.stderr, flush=True)


class SweepFolder(Callback):
    """Hydra callback that checks and locks a sweep's folder, and reports on it however it ends."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Write or check the sweep's plan; exit on errors, as Hydra only warns of exceptions."""
        folder = Path(config.hydra.sweep.dir)
        try:
            plan.begin(folder, config.hydra)
            describe_finished(folder)
            os.environ[_SWEEP] = str(os.getpid())
            text = f"interrupted\nresume it: {plan.command(folder)}\n"
            for number in signals.heeded():
                signal.signal(number, partial(_stop_jobs, folder, text))
        except InputError as error:
            raise SystemExit(print_error(error)) from None
        except OSError as error:
            line = f"hydra.sweep.dir: expected a folder that can be written, got {error.strerror}"
            raise SystemExit(print_error(InputError(f"{line} for {error.filename}"))) from None
        compose.at_end.append(partial(report_sweep, folder))


def report_sweep(folder: Path, ended_early: bool) -> bool:
    """Print the report on a sweep that this process led; return whether runs are left out."""
    from seedbed.sweeps import groups, report  # SciPy: half a second

    left_out = False
    if any(folder.glob("*/config.yaml")) or not ended_early:
        made = report.write(groups.read(folder))
        print(f"\n{report.describe(made)}\n\n{folder}", flush=True)
        left_out = bool(made["left_out"])
    if ended_early or left_out:
        print(f"resume it: {plan.command(folder)}", flush=True)
    return left_out


def _stop_jobs(folder: Path, text: str, number: int, _frame: object) -> None:
    """Pass a signal on to the jobs of a launcher, wait until they have saved, and exit."""
    signals.ignore()
    with suppress(OSError):  # print is not reentrant
        os.write(1, text.encode())
    for process in multiprocessing.active_children():
        with suppress(ProcessLookupError):
            os.kill(process.pid or 0, number)
    until = time.monotonic() + _SAVING_SECONDS
    while time.monotonic() < until and not all(map(_is_idle, folder.glob("*/config.yaml"))):
        time.sleep(0.1)
    os._exit(128 + number)


def _is_idle(config: Path) -> bool:
    """Return whether no training process holds the run."""
    with suppress(InputError), record.lock(config.parent):
        return True
    return False
