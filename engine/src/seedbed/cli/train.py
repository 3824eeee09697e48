"""Train a model: compose the configuration, check it, start the training process."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import hydra
from hydra.conf import OverridesConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from seedbed import config, launch, logs, project, record, signals
from seedbed.config import Settings, compose, interpolations, variables
from seedbed.errors import InputError, print_error
from seedbed.launch import ranks
from seedbed.record import text

# Overrides that say where a run is, alone or in a sweep.
_OF_FOLDERS = ("hydra.run.dir=", "hydra.mode=", "hydra.sweep.")


def train(composed: DictConfig) -> float | None:
    """Run one job in a separate process; return its objective to Hydra."""
    hydra_config = HydraConfig.get()
    folder = Path(hydra_config.runtime.output_dir)
    is_sweep = hydra_config.mode is RunMode.MULTIRUN
    verbose = hydra_config.verbose
    verbose = list(verbose) if OmegaConf.is_list(verbose) else verbose
    logs.pass_on(
        OmegaConf.to_container(hydra_config.job_logging, resolve=True), verbose
    )
    start = launch.start
    if is_sweep:
        from seedbed.sweeps import job  # optional: a plain run does not need it

        start = job.start
        job.prepare(folder)
    try:
        # A null seed is drawn once: a job that is started again has its own.
        is_begun = (folder / "config.yaml").exists()
        seed = record.read_config(folder).get("seed") if is_begun else None
        settings = config.check(config.resolve(composed, seed))
        if not is_sweep:
            launch.require_ranks(settings)  # before there is a folder
        start = start_here if settings.trainer.in_process and not is_sweep else start
        for key, variable in variables.secrets_of(composed):
            print(
                f"warning: {key}: config.yaml, and every copy of the record, has the"
                f" value of {variable}; let the class that needs it read the variable",
                file=sys.stderr,
                flush=True,
            )
        os.environ["SEEDBED_COMMAND"] = command_of(hydra_config.overrides, folder)
        status = start(settings, folder, interpolations.templates_of(composed))
    except InputError as error:
        launch.discard_if_empty(folder)
        status = print_error(error)
    # A failed job of a sweep does not stop the others; Ctrl-C stops all remaining jobs.
    if status in signals.INTERRUPTED or (status != 0 and not is_sweep):
        sys.exit(status)
    return launch.objective(folder)


def command_of(overrides: OverridesConf, folder: Path) -> str:
    """Return the command that trains a job in its folder, for a shell in the current
    folder."""
    # The folder says where a sweep's job is, too, and a run whose folder Hydra has
    # named.
    asked = [
        word for word in overrides.hydra if not word.lstrip("+").startswith(_OF_FOLDERS)
    ]
    path = (
        folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
    )
    words = [*overrides.task, *asked, f"hydra.run.dir={text.quoted(path)}"]
    return shlex.join(["python", "train.py", *words])


def start_here(
    settings: Settings, folder: Path, templates: Mapping[str, str] = {}
) -> int:
    """Train in this process, so that debuggers stop in the user's code; return the exit
    status.

    Libraries read the preset's variables when they are imported, which no command has
    done before.
    """
    environment = launch.training_environment(settings)
    launch.create_run_folder(folder, settings, templates)
    folder = folder.absolute()
    os.environ.update(environment)
    os.environ["TQDM_DISABLE"] = "1"  # a debugger has the terminal
    os.chdir(project.root())
    sys.path.insert(1, str(project.root() / "src"))
    from seedbed.run import process

    return process.run([str(folder)])


def main() -> int:
    rank = ranks.join()
    if rank:
        return ranks.follow()
    try:
        if rank == 0 and {"-m", "--multirun"} & {*sys.argv}:
            raise InputError(
                "-m: expected one run in several processes, got a sweep; start it"
                " without torchrun or srun, with trainer.processes=N for its jobs"
            )
        configs = str(project.configs().resolve())
        decorated = hydra.main(
            config_path=configs, config_name="config", **compose.MAIN
        )
        with compose.command_line():
            decorated(train)()
        return 0
    finally:
        if rank == 0 and not launch.started:  # the others wait for its training process
            end = sys.exception()
            status = (
                int(end.code or 0) if isinstance(end, SystemExit) else 2 if end else 0
            )
            command = launch.worker_command("dismiss_ranks", str(status))
            subprocess.run(command, check=False, stdin=subprocess.DEVNULL)
