"""Train in each run folder of the command line, one after another, in this process.

An emulated CPU takes longer to import PyTorch than to train a few steps.
"""

import sys

from seedbed.signals import Stop
from seedbed.worker import worker
from seedbed.worker.job import Alone, Job
from seedbed.worker.summary import Summary


def main() -> int:
    stop = Stop()
    for folder in sys.argv[1:]:
        job = Job.read([folder], stop, Alone())
        status = worker.train(job, Summary(job))
        if status != 0:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
