"""A callback that kills its run once in a phase, for rows of guarantees.py."""

import os
import signal

from seedbed.methods import Callback, Run, Seen


class Kill(Callback):
    """Kills the training process in step 27, in its second validation, or in its first
    test.

    An evaluation has then been computed, and no row of it has been written.
    """

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.validated: set[int] = set()

    def on_step_end(self, run: Run, step: int) -> None:
        if step == 27:
            self.kill(run, "train")

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        self.validated.add(step)
        if seen.phase == "test" or len(self.validated) > 1:
            self.kill(run, seen.phase)

    def kill(self, run: Run, phase: str) -> None:
        marker = run.folder / "killed"
        if (
            phase == self.phase
            and ".rehearsal" not in run.folder.parts
            and not marker.exists()
        ):
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
