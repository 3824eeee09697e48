"""The training process: `python -m seedbed.worker RUN_FOLDER [REQUEST]`; see
run/process.py."""

import sys

from seedbed.errors import exit_on_errors
from seedbed.run.process import run

if __name__ == "__main__":
    with exit_on_errors():
        sys.exit(run(sys.argv[1:]))
