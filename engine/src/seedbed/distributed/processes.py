"""The processes of one run: pairwise exchange of tensors, and detection of lost ranks.

Tensors go through a process group: gloo, or NCCL on GPUs.
"""

import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from seedbed import signals
from seedbed.distributed.store import StoreRanks
from seedbed.errors import InputError
from seedbed.training.shards import name_ranks

T = TypeVar("T")
_LEAVING_SECONDS = 5.0


class ProcessGroup(StoreRanks):
    """This process and its connections to the others of the run."""

    is_group = True

    def device_name(self, asked: str, gpus: int) -> str:
        """Return the device of this process: the CPU, or the GPU of its local rank."""
        if asked == "cpu" or (asked == "auto" and gpus == 0):
            return "cpu"
        processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if asked not in ("auto", "cuda"):
            raise InputError(
                "trainer.device: expected auto, cpu or cuda with several processes,"
                f" each of which takes the GPU of its own number, got {asked}"
            )
        if processes > gpus:
            raise InputError(
                f"trainer.processes: expected at most {gpus} on this machine, one a"
                f" GPU, got {processes}; ask for fewer, or try trainer.device=cpu"
            )
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"

    def meet(self, device: torch.device) -> None:
        """Wait for all processes of the run, then initialize the process group."""
        self._wait_for_all()
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=self._store,
            rank=self.rank,
            world_size=self.count,
            timeout=timedelta(seconds=self._timeout_seconds),
            device_id=device if device.type == "cuda" else None,
        )

    def partners(self) -> Iterator[int]:
        """Yield the ranks to exchange with, at distances 1, 2, 4, ..., so that each
        hears from all.

        This is recursive doubling (Thakur, Rabenseifner & Gropp 2005,
        https://doi.org/10.1177/1094342005051521); the number of processes is a power of
        two.
        """
        distance = 1
        while distance < self.count:
            yield self.rank ^ distance
            distance *= 2

    def exchange(
        self, ours: Sequence[Tensor], theirs: Sequence[Tensor], partner: int
    ) -> None:
        """Send `ours` to another process, and receive its tensors into `theirs`."""
        sends = [dist.P2POp(dist.isend, tensor, partner) for tensor in ours]
        receives = [dist.P2POp(dist.irecv, tensor, partner) for tensor in theirs]
        with self._losing(lambda: [self._culprit(partner)]):
            for work in dist.batch_isend_irecv(sends + receives):
                work.wait()

    def sum_in_any_order(self, buffers: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place; the order depends on the world
        size."""
        with self._losing(self._silent):
            for buffer in buffers:
                dist.all_reduce(buffer)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Raise InputError naming the lost ranks if an exchange fails that FSDP2 began.

        A rank may be named too that only waits for one which noticed the loss.
        """
        try:
            yield
        except RuntimeError as error:
            if not (isinstance(error, dist.DistError) or "gloo" in str(error)):
                raise
            with self._losing(self._silent):
                raise

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in the order of ranks."""
        held: dict[int, Any] = {self.rank: value}
        for partner in self.partners():
            ours = torch.frombuffer(bytearray(pickle.dumps(held)), dtype=torch.uint8)
            size = torch.zeros(1, dtype=torch.int64)
            self.exchange([torch.tensor([len(ours)])], [size], partner)
            theirs = torch.zeros(int(size), dtype=torch.uint8)
            self.exchange([ours], [theirs], partner)
            held |= pickle.loads(theirs.numpy().tobytes())
        return [held[rank] for rank in range(self.count)]

    def leave(self) -> None:
        """Leave once rank 0 has written the record: torchrun ends the others when one
        exits."""
        if not dist.is_initialized():  # interrupted before all had met
            return
        if self.rank == 0:
            self._set("written")
        else:
            self._appears("written", self._timeout_seconds)
        signals.ignore()
        dist.destroy_process_group()
        if self.rank > 0:
            self._set(f"left/{self.rank}")
        # it may serve the store
        for other in range(1, self.count if self.rank == 0 else 0):
            self._appears(f"left/{other}", _LEAVING_SECONDS)

    @contextmanager
    def _losing(self, suspects: Callable[[], list[int]]) -> Iterator[None]:
        """Raise InputError naming the lost ranks if a connection is closed or times
        out."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            why = (
                "it disconnected; find out why it ended, then resume with"
                " scripts/resume.py"
            )
            if time.monotonic() - began > 0.9 * self._timeout_seconds:
                why = (
                    f"it did not answer within {self._timeout_seconds:g} s; find out"
                    " what it waits for, or raise trainer.distributed_timeout_seconds"
                )
            raise InputError(f"{name_ranks(suspects())}: {why}") from error
