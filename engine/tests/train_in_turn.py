"""Train in each run folder of standard input, one after another, in this process.

usage: python -m tests.train_in_turn [--stop-after STEP] [--keep-checkpoints] < FOLDERS

The way of a run from its config.yaml on is the training process's own; only PyTorch is imported
once for all. A folder whose run was stopped goes on.
"""

import argparse
import shutil
import sys
from pathlib import Path

from seedbed.signals import Stop
from seedbed.worker import worker
from seedbed.worker.job import Alone, Job
from seedbed.worker.summary import Summary


class StopAfter(Stop):
    """Asked to stop as soon as a run has noted a step."""

    def __init__(self, step: int | None) -> None:
        super().__init__()
        self.step = step
        self.folder = Path()

    def requested(self) -> bool:
        """Return whether the step is in the run's table."""
        table = self.folder / "fingerprints.csv"
        if self.step is None or not table.exists():
            return super().requested()
        return table.read_text().count("\n") > self.step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stop-after", type=int, default=None)
    parser.add_argument("--keep-checkpoints", action="store_true")
    arguments = parser.parse_args()
    stop = StopAfter(arguments.stop_after)
    for line in sys.stdin:
        stop.folder = folder = Path(line.strip())
        job = Job.read([str(folder)], stop, Alone())
        summary = Summary(job)
        worker.train(job, summary)
        summary.write()
        if summary.status == "finished" and not arguments.keep_checkpoints:
            shutil.rmtree(folder / "checkpoints")  # hundreds of them
        print(f"{summary.status} {folder.name}", flush=True)
        if stop.signal is not None:  # a person's, not ours
            sys.exit(128 + stop.signal)


if __name__ == "__main__":
    main()
