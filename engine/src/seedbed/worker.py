"""The training process: `python -m seedbed.worker RUN_FOLDER [REQUEST]`; see run/process.py."""

import sys

from seedbed.errors import exit_status
from seedbed.run.process import main

if __name__ == "__main__":
    sys.exit(exit_status(main))
