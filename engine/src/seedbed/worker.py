"""The process that imports PyTorch, under the environment variables of a run's preset.

    python -m seedbed.worker TASK [FOLDER [REQUEST]]

FOLDER has the config.yaml to work with, and REQUEST is JSON. Each task is a function of
these arguments that returns the exit status; its module says what it reads and writes.
"""

import sys
import traceback
from importlib import import_module

from seedbed.errors import InputError, exit_on_errors

TASKS = {
    "train": "seedbed.run.process.run",
    "train_several": "seedbed.testing.work",
    "dismiss_ranks": "seedbed.distributed.rendezvous.dismiss",
    "evaluate": "seedbed.tools.weights.evaluate_as_requested",
    "predict": "seedbed.tools.predict.predict_as_requested",
    "export": "seedbed.tools.export.export_as_requested",
    "trace": "seedbed.explain.replay.trace_as_requested",
}


def main() -> int:
    task = "".join(sys.argv[1:2])
    if task not in TASKS:
        raise InputError(f"task: expected one of {', '.join(TASKS)}, got {task:.100}")
    module, _, name = TASKS[task].rpartition(".")
    try:
        status: int = getattr(import_module(module), name)(sys.argv[2:])
    except SystemExit as error:  # of user code, and a failure, also with status 0
        traceback.print_exception(error)
        return 1
    return status


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
