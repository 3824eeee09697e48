"""`python -m seedbed.worker RUN_FOLDER [REQUEST]`: the training process."""

import sys

from seedbed.errors import exit_status
from seedbed.worker.worker import main

sys.exit(exit_status(main))
