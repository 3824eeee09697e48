"""Train a model: compose the configuration, check it, start the training process."""

import os
import shlex
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, logs, project, record, signals
from seedbed.cli import here
from seedbed.config import compose, interpolations
from seedbed.errors import InputError, print_error
from seedbed.launch import ranks


def train(composed: DictConfig) -> float | None:
    """Run one job in a separate process; return its objective to Hydra."""
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    is_sweep = hydra_config.mode is RunMode.MULTIRUN
    composed = compose.completed(composed, hydra_config.runtime.choices)
    verbose = hydra_config.verbose
    verbose = list(verbose) if OmegaConf.is_list(verbose) else verbose
    logs.pass_on(OmegaConf.to_container(hydra_config.job_logging, resolve=True), verbose)
    start = launch.start
    if is_sweep:
        from seedbed.sweeps import job  # optional: a plain run does not need it

        start = job.start
    try:
        # A null seed is drawn once: a job that is started again has its own.
        is_begun = (folder / "config.yaml").exists()
        seed = record.read_config(folder).get("seed") if is_begun else None
        settings = config.resolve(composed, seed)
        config.check(settings)
        if not is_sweep:
            launch.require_ranks(settings)  # before there is a folder
        start = here.start if settings.trainer.in_process and not is_sweep else start
        overrides = shlex.join(hydra_config.overrides.task)
        os.environ["SEEDBED_COMMAND"] = f"python train.py {overrides}".strip()
        status = start(settings, folder, interpolations.templates_of(composed))
    except InputError as error:
        launch.discard_if_empty(folder)
        status = print_error(error)
    # A failed job of a sweep does not stop the others; Ctrl-C stops all remaining jobs.
    if status in signals.INTERRUPTED or (status != 0 and not is_sweep):
        sys.exit(status)
    return launch.objective(folder)


def dismiss_others() -> None:
    """Let the other ranks end if this one, rank 0, has not started its training process."""
    if not launch.started:
        end = sys.exception()
        ranks.dismiss(int(end.code or 0) if isinstance(end, SystemExit) else 2 if end else 0)


def main() -> int:
    rank = ranks.join()
    if rank:
        return ranks.follow()
    try:
        if rank == 0 and {"-m", "--multirun"} & {*sys.argv}:
            raise InputError(
                "-m: expected one run in several processes, got a sweep; start it without torchrun "
                "or srun, with trainer.processes=N for its jobs"
            )
        configs = str(project.configs().resolve())
        decorated = hydra.main(config_path=configs, config_name="config", **compose.MAIN)
        return compose.run(decorated(train))
    finally:
        if rank == 0:
            dismiss_others()
