"""The training process, which also writes the time at which each step ended.

python engine/measure/baselines/seedbed_steps.py STEPS_FILE RUN_FOLDER
"""

import sys
from pathlib import Path
from typing import Any

from clock import Clock
from torch import Tensor

from seedbed.errors import exit_on_errors
from seedbed.run import process


def main() -> int:
    from seedbed.run.run_logger import RunLogger

    clock, log_step = Clock(Path(sys.argv.pop(1))), RunLogger.log_step

    def timed(logger: RunLogger, step: int, loss: Tensor, *others: Any) -> None:
        log_step(logger, step, loss, *others)
        clock(loss.device)

    RunLogger.log_step = timed  # type: ignore[method-assign,assignment]
    return process.run(sys.argv[1:])


if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(main())
