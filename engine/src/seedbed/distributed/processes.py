"""The processes of one run: rendezvous, pairwise exchange, and detection of lost ranks.

They share a key-value store: a file created by train.py, torchrun's TCP store (both outlive each
process), or one served by rank 0. Tensors go through a process group: gloo, or NCCL on GPUs.
"""

import json
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # type: ignore[attr-defined]

from seedbed import signals
from seedbed.errors import InputError, Interrupted
from seedbed.ranks import Ranks
from seedbed.training.shards import name_ranks

T = TypeVar("T")
_LEAVING_SECONDS = 5.0
_GRACE_SECONDS = 1.0  # to report a lost partner, before a process counts as lost itself


class ProcessGroup(Ranks):
    """This process and its connections to the others of the run."""

    is_group = True

    def __init__(self, store: Store, seconds: float, stop_requested: Callable[[], bool]) -> None:
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self._store, self._timeout_seconds = store, seconds
        self._stop_requested = stop_requested

    def device_name(self, asked: str, gpus: int) -> str:
        """Return the device of this process: the CPU, or the GPU of its local rank."""
        if asked == "cpu" or (asked == "auto" and gpus == 0):
            return "cpu"
        here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        if asked not in ("auto", "cuda"):
            raise InputError(
                "trainer.device: expected auto, cpu or cuda with several processes, each of which "
                f"takes the GPU of its own number, got {asked}"
            )
        if here > gpus:
            raise InputError(
                f"trainer.processes: expected at most {gpus} on this machine, one a GPU, got "
                f"{here}; ask for fewer, or try trainer.device=cpu"
            )
        return f"cuda:{os.environ.get('LOCAL_RANK', '0')}"

    def meet(self, device: torch.device) -> None:
        """Wait for all processes of the run, then initialize the process group."""
        self._store.set(f"here/{self.rank}", "")
        deadline = time.monotonic() + self._timeout_seconds
        while missing := [r for r in range(self.count) if not self._store.check([f"here/{r}"])]:
            self._require_no_stop()
            if time.monotonic() > deadline:
                raise InputError(
                    f"{name_ranks(missing)}: expected {self.count} processes within "
                    f"{self._timeout_seconds:g} s, got {self.count - len(missing)}; see what "
                    "became of it, or raise trainer.distributed_timeout_seconds"
                )
            time.sleep(0.05)
        if self._store.compare_set("meeting", "", "goes on") == b"ends":
            raise Interrupted
        dist.init_process_group(
            "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl",
            store=self._store,
            rank=self.rank,
            world_size=self.count,
            timeout=timedelta(seconds=self._timeout_seconds),
            device_id=device if device.type == "cuda" else None,
        )

    def decide(self, key: str, choose: Callable[[], Any]) -> Any:
        if self.rank == 0:
            self.publish(key, choose())
        return self.receive(key, self._timeout_seconds)

    def publish(self, key: str, value: object) -> None:
        """Publish a value that JSON can hold, for the other ranks; works before `meet`."""
        self._store.set(f"published/{key}", json.dumps(value))

    def receive(self, key: str, seconds: float) -> Any:
        """Return what rank 0 publishes; raise InputError if that takes more than `seconds`."""
        published = f"published/{key}"
        if not self._appears(published, seconds):
            self._store.check([published])  # raises if it is the store that is gone
            raise InputError(
                f"rank 0: expected an answer within {seconds:g} s, got none; see what became of "
                "it, or raise trainer.distributed_timeout_seconds"
            )
        return json.loads(self._store.get(published))

    def _require_no_stop(self) -> None:
        """Raise Interrupted if a process was asked to stop before all have met, in all of them."""
        if self._stop_requested():
            self._store.compare_set("meeting", "", "ends")
        if self._store.check(["meeting"]) and self._store.get("meeting") == b"ends":
            raise Interrupted

    def acknowledge(self) -> None:
        """Tell rank 0 that this rank has acted on what it published."""
        self._store.set(f"acknowledged/{self.rank}", "")

    def wait_until_acknowledged(self) -> None:
        """Wait until all other ranks have acknowledged what rank 0 published, or the time is up.

        Raise InputError with the reason if one of them has failed instead.
        """
        for rank in range(1, self.count):
            arrived = self._appears(f"acknowledged/{rank}", self._timeout_seconds)
            if not arrived and self._store.check(["failure"]):
                raise InputError(self._store.get("failure").decode().partition(":")[2])

    def partners(self) -> Iterator[int]:
        """Yield the ranks to exchange with, at distances 1, 2, 4, ..., so that each hears from all.

        This is recursive doubling (Thakur, Rabenseifner & Gropp 2005,
        https://doi.org/10.1177/1094342005051521); the number of processes is a power of two.
        """
        distance = 1
        while distance < self.count:
            yield self.rank ^ distance
            distance *= 2

    def exchange(self, ours: Sequence[Tensor], theirs: Sequence[Tensor], partner: int) -> None:
        """Send `ours` to another process, and receive its tensors into `theirs`."""
        sends = [dist.P2POp(dist.isend, tensor, partner) for tensor in ours]
        receives = [dist.P2POp(dist.irecv, tensor, partner) for tensor in theirs]
        with self._losing(lambda: [self._culprit(partner)]):
            for work in dist.batch_isend_irecv(sends + receives):
                work.wait()

    def sum_in_any_order(self, buffers: Sequence[Tensor]) -> None:
        """Sum tensors over all processes, in place; the order depends on the world size."""
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

    def _silent(self) -> list[int]:
        """Return the ranks that note no loss, as all do that are left."""
        self._set(f"lost/{self.rank}")
        others = [r for r in range(self.count) if r != self.rank]
        return [r for r in others if not self._appears(f"lost/{r}")] or others

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

    def first_failure(self, reason: str) -> tuple[str, bool]:
        """Return the reason of the first process to fail, and whether that was this process."""
        ours = f"{self.rank}:{reason}"
        try:
            first = self._store.compare_set("failure", "", ours).decode()
        except RuntimeError:  # the store went away with the process that served it
            first = ours
        return first.partition(":")[2], first == ours

    def leave(self) -> None:
        """Leave once rank 0 has written the record: torchrun ends the others when one exits."""
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
        for other in range(1, self.count if self.rank == 0 else 0):  # it may serve the store
            self._appears(f"left/{other}", _LEAVING_SECONDS)

    def _set(self, key: str) -> None:
        with suppress(RuntimeError):  # the store went away: the others notice, too
            self._store.set(key, "")

    def _culprit(self, partner: int) -> int:
        """Return the rank that broke the chain: `partner`, or the one it lost, and so on."""
        seen, suspect = {self.rank}, partner
        try:
            self._store.set(f"lost/{self.rank}", str(partner))
            while suspect not in seen and self._appears(f"lost/{suspect}"):
                seen.add(suspect)
                suspect = int(self._store.get(f"lost/{suspect}"))
        except RuntimeError:  # without a store, the partner is all we know
            return partner
        return suspect

    def _appears(self, key: str, seconds: float = _GRACE_SECONDS) -> bool:
        """Wait for a key of the store; False if it times out or a failure is reported first."""
        deadline = time.monotonic() + seconds
        try:
            while not self._store.check([key]):
                if time.monotonic() > deadline or self._store.check(["failure"]):
                    return False
                if not dist.is_initialized():
                    self._require_no_stop()
                time.sleep(0.02)
        except RuntimeError:
            return False
        return True

    @contextmanager
    def _losing(self, suspects: Callable[[], list[int]]) -> Iterator[None]:
        """Raise InputError naming the lost ranks if a connection is closed or times out."""
        began = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            why = (
                "expected an open connection, got a closed one; find out why it ended, then resume "
                "with scripts/resume.py"
            )
            if time.monotonic() - began > 0.9 * self._timeout_seconds:
                why = (
                    f"expected an answer within {self._timeout_seconds:g} s, got none; find out "
                    "what it waits for, or raise trainer.distributed_timeout_seconds"
                )
            raise InputError(f"{name_ranks(suspects())}: {why}") from error
