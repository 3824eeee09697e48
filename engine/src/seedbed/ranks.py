"""The ranks of a run, its processes by number: here the only one of a run in one
process."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

T = TypeVar("T")
RUN = "run"  # the key of what rank 0 publishes first: a run, or the status to end with


class Ranks:
    """A run in one process; `distributed.processes.ProcessGroup` is one of several."""

    rank = 0
    count = 1
    # whether there is a process group of PyTorch, maybe of one process
    is_group = False

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0, which prints and writes the record."""
        return self.rank == 0

    def device_name(self, asked: str, gpus: int) -> str:
        """Return the name of this process's device, for `trainer.device` on a machine
        with GPUs."""
        return asked

    def meet(self, device: Any) -> None:
        """Wait for all processes of the run."""

    def decide(self, key: str, choose: Callable[[], Any]) -> Any:
        """Return what rank 0 chooses, a value that JSON can hold; works before
        `meet`."""
        return choose()

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of ranks; works after
        `meet`."""
        return [value]

    def partners(self) -> Iterator[int]:
        """Yield the ranks to exchange with, in order."""
        return iter(())

    def exchange(
        self, ours: Sequence[Any], theirs: Sequence[Any], partner: int
    ) -> None:
        """Send the tensors `ours` to another process, and receive its tensors into
        `theirs`."""

    def sum_in_any_order(self, buffers: Sequence[Any]) -> None:
        """Sum tensors over all processes, in place; the order depends on the world
        size."""

    def watching(self) -> AbstractContextManager[None]:
        """Raise InputError naming the lost ranks if an exchange fails."""
        return nullcontext()

    def first_failure(self, reason: str) -> tuple[str, bool]:
        """Return the reason of the first process to fail, and whether that was this
        process."""
        return reason, True

    def leave(self) -> None:
        """Leave once rank 0 has written the record."""
