"""What training asks of a run logger, and the one that writes nothing."""

from collections.abc import Mapping

from torch import Tensor

from seedbed.training.state import Evaluation, Progress


class Logger:
    """Writes the record of a run; `loop.fit` says when it is called. This one does nothing.

    Attributes:
        last: the newest value of each metric.
    """

    last: dict[str, float]

    def log_step(
        self, step: int, loss: Tensor, values: dict[str, Tensor] | None, stages: Tensor | None
    ) -> None:
        """Note a step; nothing is read from the device yet."""

    def write(self, progress: Progress) -> None:
        """Write down the steps noted since the last call."""

    def log_validation(self, progress: Progress, result: Evaluation, is_best: bool) -> None:
        """Write down a validation, and keep the weights if they are the best so far."""

    def log_test(self, results: Mapping[int, Evaluation]) -> None:
        """Write down the tests by the step of their weights, the one that counts at the end."""

    def save_checkpoint(self, progress: Progress) -> None:
        """Save all that the run needs to go on from here as if it had never stopped."""

    def log(self, text: str) -> None:
        """Print a line."""

    def close(self) -> None:
        """Note that the process ends."""


class NullLogger(Logger):
    """The run logger of a process that leaves the record to another one."""

    def __init__(self) -> None:
        self.last: dict[str, float] = {}
