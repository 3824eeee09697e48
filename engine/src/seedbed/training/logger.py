"""What training asks of a run logger."""

from collections.abc import Mapping

from torch import Tensor

from seedbed.training.state import Evaluation, Progress


class Logger:
    """Writes nothing: for a process that leaves the record to another one.

    `worker.RunLogger` writes it; `loop.fit` says when each function is called.

    Attributes:
        last: the newest value of each metric.
    """

    def __init__(self) -> None:
        self.last: dict[str, float] = {}

    def log_step(
        self, step: int, loss: Tensor, values: dict[str, Tensor] | None, stages: Tensor | None
    ) -> None:
        """Note a step; nothing is read from the device yet."""

    def write(self, progress: Progress) -> None:
        """Write down the steps noted since the last call."""

    def log_validation(self, progress: Progress, result: Evaluation, is_best: bool) -> None: ...

    def log_test(self, results: Mapping[int, Evaluation]) -> None:
        """Write down the tests by the step of their weights, the one that counts at the end."""

    def save_checkpoint(self, progress: Progress) -> None: ...

    def log(self, text: str) -> None:
        """Print a line."""

    def close(self) -> None: ...
