"""Training in the process of train.py, so that debuggers stop in the user's code."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from seedbed import launch, project


def start(config: DictConfig, folder: Path, templates: Mapping[str, str] = {}) -> int:
    """Create the run folder and train in this process; return the exit status.

    Libraries read the preset's variables when they are imported, which no command has done before.
    """
    environment = launch.training_environment(config)
    launch.create_run_folder(folder, config, templates)
    folder = folder.absolute()
    os.environ.update(environment)
    os.environ["TQDM_DISABLE"] = "1"  # a debugger has the terminal
    os.chdir(project.root())
    sys.path.insert(1, str(project.root() / "src"))
    from seedbed.run import process

    return process.run([str(folder)])
