"""What a training process works on: one run, from a command line, maybe with other processes."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omegaconf import DictConfig

from seedbed import offline, record
from seedbed.config.request import Request
from seedbed.config.settings import Trainer
from seedbed.errors import InputError
from seedbed.signals import Stop

if TYPE_CHECKING:
    import torch

    from seedbed.training.shards import Shards


class Alone:
    """The only process of a run; `distributed.Processes` is one of several.

    Attributes:
        leads: whether this process prints, and writes the record: rank 0.
    """

    leads = True

    def join(
        self, trainer: Trainer, stop_requested: Callable[[], bool]
    ) -> "tuple[torch.device, Shards]":
        """Wait for the others; return this process's device and its shards of each batch."""
        from seedbed.worker import assemble  # which imports torch, after signals are handled

        device = assemble.choose_device(trainer.device)
        return device, assemble.cut_batches(trainer, stop_requested)

    def first_failure(self, reason: str) -> tuple[str, bool]:
        """Return why the run failed, by the first process to fail, and whether it is this one."""
        return reason, True


@dataclass(frozen=True)
class Job:
    """A run to be trained, in a folder that exists.

    Attributes:
        settings: the configuration, with what was asked for by `request`.
        group: the processes that work on it.
    """

    folder: Path
    settings: DictConfig
    request: Request
    stop: Stop
    group: Alone

    @classmethod
    def read(cls, arguments: Sequence[str], stop: Stop, group: Alone) -> "Job":
        """Read a run folder's configuration; the arguments are RUN_FOLDER [REQUEST as JSON]."""
        if len(arguments) not in (1, 2):
            raise InputError(f"usage: expected RUN_FOLDER, got {len(arguments)} arguments")
        folder = Path(arguments[0])
        request = Request(**json.loads(arguments[1])) if len(arguments) == 2 else Request()
        offline.enforce()
        settings = request.applied_to(record.read_config(folder))
        return cls(folder, settings, request, stop, group)
