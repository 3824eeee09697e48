"""From a checked configuration to a training process: run folder, environment, signals."""

from seedbed.launch.process import Processes, alone, run_passing_signals
from seedbed.launch.start import (
    create_run_folder,
    discard_if_empty,
    objective,
    require_name,
    run_worker,
    start,
    training_environment,
    worker_command,
)

__all__ = [
    "Processes",
    "alone",
    "create_run_folder",
    "discard_if_empty",
    "objective",
    "require_name",
    "run_passing_signals",
    "run_worker",
    "start",
    "training_environment",
    "worker_command",
]
