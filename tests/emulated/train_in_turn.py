"""Train in each run folder of the command line, one after another, in this process.

An emulated CPU takes longer to import PyTorch than to train a few steps.
"""

import sys
from pathlib import Path

from seedbed import record
from seedbed.launch import resume
from seedbed.worker import worker


def main() -> int:
    stop = worker.Stop()
    for folder in map(Path, sys.argv[1:]):
        settings = record.read_config(folder)
        summary = worker.opening(folder, settings, {})
        status = worker.run(folder, settings, resume.Request(), stop, summary)
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
