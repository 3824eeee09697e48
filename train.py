"""Train a model: compose the configuration, check it, start the training process.

python train.py                              CNN on 5,000 MNIST digits, bit for bit
python train.py experiment=adding_lstm       an experiment of configs/experiment/
python train.py -m seed=0,1,2                a sweep; ends with a table over the seeds
python train.py --cfg job                    the configuration that would run
"""

import signal

# Ctrl-C during the imports below ends us without a traceback, unless we were told to ignore it.
if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import contextlib
import math
import os
import secrets
import shlex
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, signals
from seedbed.config import hydra_errors, launchers
from seedbed.errors import InputError, exit_status
from seedbed.sweeps import resume_sweep
from seedbed.sweeps.callbacks import SweepFolder


@hydra.main(version_base="1.3", config_path="configs", config_name="config")
def train(composed: DictConfig) -> float | None:
    """Run one job, in a process of its own; return its objective to Hydra."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    if not HydraConfig.get().launcher._target_.endswith(".BasicLauncher"):
        share_the_machine()
    try:
        launch.require_name("hydra.run.dir", HydraConfig.get().run.dir)
        resolved = config.resolve(composed)
        config.check(resolved)
        resuming = HydraConfig.get().job.env_set.get(resume_sweep.RESUME)
        status = resume_sweep.run_job(resolved, folder, resuming)
    except InputError as error:
        discard_if_empty(folder)
        print(f"error: {error}", file=sys.stderr, flush=True)
        status = 2
    is_sweep = HydraConfig.get().mode is RunMode.MULTIRUN
    # A failed job does not take the others with it; Ctrl-C is for all that are still to come.
    if status in signals.INTERRUPTED or (status != 0 and not is_sweep):
        sys.exit(status)
    objective = launch.objective(folder)
    return None if math.isnan(objective) else objective  # None: Optuna counts a failed trial


def share_the_machine() -> None:
    """Let jobs that run side by side leave each other the terminal and the cores.

    Threads that wait for each other do so asleep; it changes how long a step takes, and no bit.
    """
    os.environ.setdefault("TQDM_DISABLE", "1")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def discard_if_empty(folder: Path) -> None:
    """Remove the folder that Hydra made for a run that never was."""
    if folder == Path.cwd():  # which somebody else made
        return
    with contextlib.suppress(OSError):
        folder.rmdir()


def name_uniquely(arguments: list[str]) -> list[str]:
    """Return a command line with the part of the run folder's name that no other run has.

    It is an override, and not a resolver, because launchers compose the configuration again in
    other processes and on other machines. Options come first: Hydra's parser wants the overrides
    together, wherever people put them.
    """
    overrides = [w for w in arguments if not w.startswith("-") and ("=" in w or w[:1] == "~")]
    options = [word for word in arguments if word not in overrides]
    # Quoted, because 58e12345 would be read as a number: infinity, in every such name.
    unique = f"+hydra.job.env_set.SEEDBED_RUN='{secrets.token_hex(4)}'"
    return [*options, *overrides, unique, *name_by_what_varies(overrides)]


def name_by_what_varies(overrides: list[str]) -> list[str]:
    """Return the override that keeps what is the same in all jobs out of their folders' names."""
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException:
        return []  # Hydra will say what is wrong with it
    hydra_errors.refuse(parsed)
    fixed = sorted({each.key_or_group for each in parsed if not each.is_sweep_override()})
    return [f"hydra.job.config.override_dirname.exclude_keys=[{','.join(fixed)}]"] if fixed else []


def main() -> int:
    """Run Hydra with its errors as one line each."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions reach us instead of being printed
    sys.argv[1:] = name_uniquely(sys.argv[1:])
    try:
        try:
            train()
        finally:
            ended_early = sys.exception() is not None
            jobs_failed = report_sweep(SweepFolder.folder, ended_early)
    except Exception as error:
        explained = explain(error)
        if explained is not None:
            raise explained from error
        if not launchers.ends_a_search(error):
            raise
        jobs_failed = True  # the last one
    return 1 if jobs_failed else 0


def explain(error: Exception) -> InputError | None:
    """Say in one line what Hydra or a launcher could not do; None if it was neither."""
    if isinstance(error, hydra_errors.COMPOSITION_ERRORS):
        return hydra_errors.explain(error)
    explained = launchers.explain(error)
    if (
        explained is None
        and hydra_errors.is_of_hydra(error)
        and isinstance(error, ValueError | AssertionError)
    ):
        return hydra_errors.explain(error)
    if explained is None and isinstance(error, OSError) and not isinstance(error, BrokenPipeError):
        return InputError(  # from Hydra, which makes the folders
            f"hydra.run.dir: expected a folder that can be written, got {error.strerror} for "
            f"{error.filename}; choose another, or free space"
        )
    return explained


def report_sweep(folder: Path | None, ended_early: bool) -> bool:
    """Report on a sweep, if this was one; say whether jobs of it failed."""
    if folder is None or not folder.is_dir():
        return False
    from seedbed.sweeps import groups, report  # statistics, half a second: for sweeps alone

    try:
        found = groups.read(folder)
        text = report.write(found)
    except InputError:
        if ended_early:  # what ended it is said; there may be no run yet
            return False
        raise
    print(f"\n{text}\n\n{best_trial(folder)}{folder}", flush=True)
    if ended_early or found.lost:
        print(f"resume it: python scripts/resume.py {shlex.quote(str(folder))}", flush=True)
    return bool(found.lost)


def best_trial(folder: Path) -> str:
    """Return a line on what a search found best, from the file of Optuna's sweeper; or nothing."""
    results = folder / "optimization_results.yaml"
    if not results.exists():
        return ""
    best = OmegaConf.load(results)
    settings = ", ".join(f"{key}={value}" for key, value in best.best_params.items())
    return f"best: {settings} with an objective of {best.best_value}\n"


if __name__ == "__main__":
    sys.exit(exit_status(main))
