"""The slices of a batch and who works on them, as training sees it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from seedbed.data.positions import Position

if TYPE_CHECKING:
    from seedbed.training.loop import TrainingState

T = TypeVar("T")


class Shards:
    """One shard, one process: a batch is worked on whole.

    `distributed.SharedShards` does the same for more.
    """

    count = 1
    mine = range(1)  # the shards that this process works on
    processes = 1
    writes_record = True  # one of the processes does
    order_is_fixed = True  # of sums, whatever the number of processes

    def __init__(self, asked_to_stop: Callable[[], bool] = lambda: False) -> None:
        """Take what says whether this process was asked to stop."""
        self.asked_to_stop = asked_to_stop

    def stop_requested(self) -> bool:
        """Return whether to stop before the next step; every process gets the same answer."""
        return self.asked_to_stop()

    def begin(self, training: "TrainingState", step: int) -> None:
        """Refuse what cannot be trained in shards, and processes that begin unlike."""

    def compare(self, training: "TrainingState", step: int) -> None:
        """Refuse to go on if the processes' weights or optimizers have drifted apart."""

    def divide(self, positions: Iterator[Position]) -> Iterator[Position]:
        """Yield the positions of our shards, batch after batch."""
        return positions

    def share(self, positions: list[Position]) -> list[Position]:
        """Return those batches of an evaluation that are ours."""
        return positions

    def reduce(self, parts: Iterator[list[Tensor]]) -> list[Tensor]:
        """Put the tensors of all shards together: means of floats, sums of integers.

        Args:
            parts: yields for each of our shards its tensors, alike in number and shape.
        """
        return next(parts)

    def gather(self, work: Callable[[], T]) -> list[T]:
        """Do something in every process; return all results, in the order of the processes."""
        return [work()]
