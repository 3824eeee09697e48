"""The training process, which also writes the time at which each step ended.

python engine/measure/baselines/seedbed_steps.py STEPS_FILE RUN_FOLDER
"""

import sys
import time
from typing import Any

from seedbed.errors import exit_status
from seedbed.run import process


def main() -> int:
    from seedbed.run.run_logger import RunLogger

    with open(sys.argv.pop(1), "w", buffering=1) as steps:  # line-buffered
        log_step = RunLogger.log_step

        def timed(*arguments: Any) -> None:
            log_step(*arguments)
            print(time.monotonic(), file=steps)

        RunLogger.log_step = timed  # type: ignore[method-assign,assignment]
        return process.main()


if __name__ == "__main__":
    sys.exit(exit_status(main))
