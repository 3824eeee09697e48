"""The training process with a stopwatch: notes when each step ended.

python -m seedbed.benchmark_worker STEPS_FILE RUN_FOLDER
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from seedbed import worker
from seedbed.errors import exit_status


def main() -> int:
    """Train as `seedbed.worker` does; write down the end of each step."""
    from seedbed.journal import Journal

    steps_file = Path(sys.argv.pop(1))
    step_ends: list[float] = []
    note_step = Journal.note_step

    def timed(*arguments: Any) -> None:
        note_step(*arguments)
        step_ends.append(time.monotonic())

    Journal.note_step = timed  # type: ignore[method-assign,assignment]
    status = worker.main()
    steps_file.write_text(json.dumps({"step_ends": step_ends}))
    return status


if __name__ == "__main__":
    sys.exit(exit_status(main))
