"""The job of a training process: one run from a command line, shared with other ranks
if any."""

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seedbed import launch, offline, record
from seedbed.config import Request, Settings, check
from seedbed.errors import InputError
from seedbed.ranks import RUN, Ranks
from seedbed.record import chain, untrusted
from seedbed.signals import Stop

if TYPE_CHECKING:  # it imports torch, before which signals must be handled
    from seedbed.distributed.processes import ProcessGroup


@dataclass
class Job:
    """A run to be trained, in an existing folder."""

    folder: Path
    settings: Settings  # with the changes of `request`
    request: Request
    stop: Stop
    ranks: Ranks = field(default_factory=Ranks)  # the processes that train it
    summary: dict[str, Any] = field(default_factory=dict)  # content of summary.json
    # There is a checkpoint, and until it can be resumed from, the record is left
    # unchanged.
    is_resuming = False
    starts_over = False  # the run was started before and left no checkpoint

    @classmethod
    def read(cls, arguments: Sequence[str], stop: Stop) -> "Job":
        """Read a run folder's configuration; the arguments are RUN_FOLDER [REQUEST as
        JSON]."""
        if len(arguments) not in (1, 2):
            raise InputError(
                f"usage: expected RUN_FOLDER, got {len(arguments)} arguments"
            )
        folder = Path(arguments[0])
        request = (
            Request(**json.loads(arguments[1])) if len(arguments) == 2 else Request()
        )
        offline.enforce()
        return cls(
            folder, check(request.applied_to(record.read_config(folder))), request, stop
        )

    @property
    def starts_record(self) -> bool:
        """Whether this process writes the record of a run that has not begun before."""
        return self.ranks.leads and not self.is_resuming

    def publish(self, group: "ProcessGroup") -> None:
        """Publish the run to the other ranks, which must see its folder."""
        # they were started with it
        if launch.STORE in os.environ or self.request.rehearsal:
            return
        if not group.leads:
            group.acknowledge()
            return
        # A new name each time: network file systems cache that a name is absent.
        name = f".ranks-{os.uname().nodename}-{os.getpid()}-{time.time_ns()}"
        marker = self.folder.absolute() / name
        marker.touch()
        request = json.dumps(asdict(self.request))
        group.publish(RUN, {"marker": str(marker), "request": request})
        try:
            group.wait_until_acknowledged()
        finally:
            marker.unlink()

    def take_checkpoint(self) -> None:
        """Copy the checkpoint to begin with, tables and code from the record to
        replay."""
        from seedbed.training import checkpoint  # which imports torch

        run = Path(str(self.request.record))
        step = self.request.first_step
        untrusted.reject_external_links(run)
        steps = record.kept_checkpoints(run)
        if step not in steps:
            paths = [run / "checkpoints" / name for name in record.LAST_CHECKPOINTS]
            steps |= {
                checkpoint.progress_of(checkpoint.load(p)).step: p
                for p in paths
                if p.exists()
            }
        if step not in steps:
            known = (
                " or ".join(map(str, sorted(steps)))
                or "none: the record has no checkpoint"
            )
            raise InputError(
                f"--from-step: expected the step of a checkpoint, {known}, got {step}"
            )
        (self.folder / "checkpoints").mkdir()
        names = (
            *("metrics.csv", "fingerprints.csv", "environment.json", "code.zip"),
            *("statistics.json", "checkpoints/best.pt", chain.FILE, chain.PLAN),
        )
        copies = {name: run / name for name in names}
        for name, path in {**copies, "checkpoints/last.pt": steps[step]}.items():
            if path.exists():
                record.write_atomically(self.folder / name, path)
        record.write_summary(self.folder, {"status": "interrupted"})

    def begin(self) -> None:
        """Start the summary of a run that is about to start or to resume."""
        before = record.require_unfinished(self.folder, self.request.settings)
        checkpoints = [
            self.folder / "checkpoints" / name for name in record.LAST_CHECKPOINTS
        ]
        self.is_resuming = any(path.exists() for path in checkpoints)
        self.starts_over = bool(before) and not self.is_resuming
        self.summary = {
            **(before if self.is_resuming else {}),  # valid until the run has resumed
            "seed": self.settings.seed,
            "command": before.get("command", os.environ.get("SEEDBED_COMMAND")),
            "resumes": before.get("resumes", []),
            "warnings": before.get("warnings", []),
            "status": "running",
            "error": None,
        }

    def write_summary(self, **changes: Any) -> None:
        record.write_summary(self.folder, self.summary | changes)
