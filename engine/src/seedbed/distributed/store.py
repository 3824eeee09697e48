"""What the ranks of a run tell each other through a key-value store.

It is a file created by train.py, torchrun's TCP store (both outlive each process), or
one served by rank 0. It works before they have met, and when a rank is lost.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed import Store  # type: ignore[attr-defined]

from seedbed.errors import InputError, Interrupted
from seedbed.ranks import Ranks
from seedbed.training.shards import name_ranks

_GRACE_SECONDS = 1.0  # to report a lost partner, before a process counts as lost itself


class StoreRanks(Ranks):
    """This process and the others that share its store."""

    def __init__(
        self, store: Store, seconds: float, stop_requested: Callable[[], bool]
    ) -> None:
        self.rank = int(os.environ["RANK"])
        self.count = int(os.environ["WORLD_SIZE"])
        self._store = store
        self._timeout_seconds = seconds
        self._stop_requested = stop_requested

    def decide(self, key: str, choose: Callable[[], Any]) -> Any:
        if self.rank == 0:
            self.publish(key, choose())
        return self.receive(key, self._timeout_seconds)

    def publish(self, key: str, value: object) -> None:
        """Publish a value that JSON can hold, for the other ranks; works before
        `meet`."""
        self._store.set(f"published/{key}", json.dumps(value))

    def receive(self, key: str, seconds: float) -> Any:
        """Return what rank 0 publishes; raise InputError if that takes more than
        `seconds`."""
        published = f"published/{key}"
        if not self._appears(published, seconds):
            self._store.check([published])  # raises if it is the store that is gone
            raise InputError(
                f"rank 0: expected an answer within {seconds:g} s, got none; see what"
                " became of it, or raise trainer.distributed_timeout_seconds"
            )
        return json.loads(self._store.get(published))

    def _require_no_stop(self) -> None:
        """Raise Interrupted if a process was asked to stop before all have met, in all
        of them."""
        if self._stop_requested():
            self._store.compare_set("meeting", "", "ends")
        if self._store.check(["meeting"]) and self._store.get("meeting") == b"ends":
            raise Interrupted

    def acknowledge(self) -> None:
        """Tell rank 0 that this rank has acted on what it published."""
        self._store.set(f"acknowledged/{self.rank}", "")

    def wait_until_acknowledged(self) -> None:
        """Wait until all other ranks have acknowledged what rank 0 published, or the
        time is up.

        Raise InputError with the reason if one of them has failed instead.
        """
        for rank in range(1, self.count):
            arrived = self._appears(f"acknowledged/{rank}", self._timeout_seconds)
            if not arrived and self._store.check(["failure"]):
                raise InputError(self._store.get("failure").decode().partition(":")[2])

    def _wait_for_all(self) -> None:
        """Wait for all processes of the run; raise Interrupted if one was asked to stop
        first."""
        self._store.set(f"here/{self.rank}", "")
        deadline = time.monotonic() + self._timeout_seconds
        while missing := [
            r for r in range(self.count) if not self._store.check([f"here/{r}"])
        ]:
            self._require_no_stop()
            if time.monotonic() > deadline:
                raise InputError(
                    f"{name_ranks(missing)}: expected {self.count} processes within"
                    f" {self._timeout_seconds:g} s, got {self.count - len(missing)};"
                    " see what became of it, or raise"
                    " trainer.distributed_timeout_seconds"
                )
            time.sleep(0.05)
        if self._store.compare_set("meeting", "", "goes on") == b"ends":
            raise Interrupted

    def first_failure(self, reason: str) -> tuple[str, bool]:
        """Return the reason of the first process to fail, and whether that was this
        process."""
        ours = f"{self.rank}:{reason}"
        try:
            first = self._store.compare_set("failure", "", ours).decode()
        except RuntimeError:  # the store went away with the process that served it
            first = ours
        return first.partition(":")[2], first == ours

    def _silent(self) -> list[int]:
        """Return the ranks that note no loss, as all do that are left."""
        self._set(f"lost/{self.rank}")
        others = [r for r in range(self.count) if r != self.rank]
        return [r for r in others if not self._appears(f"lost/{r}")] or others

    def _set(self, key: str) -> None:
        with suppress(RuntimeError):  # the store went away: the others notice, too
            self._store.set(key, "")

    def _culprit(self, partner: int) -> int:
        """Return the rank that broke the chain: `partner`, or the one it lost, and so
        on."""
        seen = {self.rank}
        suspect = partner
        try:
            self._store.set(f"lost/{self.rank}", str(partner))
            while suspect not in seen and self._appears(f"lost/{suspect}"):
                seen.add(suspect)
                suspect = int(self._store.get(f"lost/{suspect}"))
        except RuntimeError:  # without a store, the partner is all we know
            return partner
        return suspect

    def _appears(self, key: str, seconds: float = _GRACE_SECONDS) -> bool:
        """Wait for a key of the store; False if it times out or a failure is reported
        first."""
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
