"""Hydra's callback at the start of a sweep."""

import traceback
from functools import partial
from pathlib import Path
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf

from seedbed import launch
from seedbed.config import command, launchers
from seedbed.errors import InputError, print_error
from seedbed.record import terminal


class SweepFolder(Callback):
    """Checks and locks the folder of a sweep, and has it reported on however the sweep ends."""

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Check what the sweep is started with, and note its folder."""
        from seedbed.sweeps import job, resume_sweep  # Hydra loads this file for plain runs as well

        folder = Path(config.hydra.sweep.dir)
        try:
            launch.require_name("hydra.sweep.dir", config.hydra.sweep.dir)
            launchers.prepare(config.hydra)
            resume_sweep.begin(folder, config.hydra)
        except InputError as error:  # Hydra would make a warning of it
            raise SystemExit(print_error(error)) from None
        except OSError:  # Hydra meets it again when it writes there, and reports it then
            return
        except Exception:  # of which Hydra would make a warning as well
            traceback.print_exc()
            raise SystemExit(1) from None
        command.at_end(partial(report_sweep, folder))
        job.stop_with_the_sweep(folder)


def report_sweep(folder: Path, ended_early: bool) -> bool:
    """Print the report on a sweep; return whether jobs of it failed.

    Args:
        ended_early: an exception ended it, which is printed by others.
    """
    if not folder.is_dir():
        return False
    from seedbed.sweeps import groups, report  # statistics: half a second

    try:
        found = groups.read(folder)
        text = report.write(found)
    except InputError:
        if ended_early:  # there may be no run yet
            return False
        raise
    print(f"\n{text}\n\n{best_trial(folder)}{folder}", flush=True)
    if found.groups:
        print(f"picture: {folder / 'sweep.png'}", flush=True)
    if ended_early or not all(run.refused for run in found.lost):
        print(f"resume it: {terminal.resume_command(folder)}", flush=True)
    return bool(found.lost)


def best_trial(folder: Path) -> str:
    """Return a line on what a search found best, from the file of Optuna's sweeper; or nothing."""
    results = folder / "optimization_results.yaml"
    if not results.exists():
        return ""
    best = OmegaConf.load(results)
    settings = ", ".join(f"{key}={value}" for key, value in best.best_params.items())
    return f"best: {settings} with an objective of {best.best_value}\n"
