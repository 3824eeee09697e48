"""The training process, see worker.py."""

import sys

from seedbed.errors import exit_status
from seedbed.worker.worker import main

sys.exit(exit_status(main))
