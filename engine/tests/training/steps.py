"""Training of a case of `tests.run.cases` in this process, with its state kept in
memory."""

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch

from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Batch, Source
from seedbed.tasks import Classification
from seedbed.training import checkpoint, loop
from seedbed.training.loop import Logger
from seedbed.training.shards import Shards
from seedbed.training.state import Plan, Progress, TrainingState
from tests.run.cases import SAMPLES, Case

STEPS = 6  # three epochs


class Found(NamedTuple):
    """The results of a run: fingerprints and checkpoints by step."""

    rows: dict[int, list[int]]
    saved: dict[int, bytes]


class Notes(Logger):
    """Keeps fingerprints and checkpoints in memory, in place of a record."""

    def __init__(self, training: TrainingState) -> None:
        super().__init__()
        self.training = training
        self.found = Found({}, {})

    def log_step(self, step: int, loss: Any, values: Any, stages: Any) -> None:
        self.found.rows[step] = stages.tolist()

    def save_checkpoint(self, progress: Progress) -> None:
        state = checkpoint.capture(self.training, progress)
        self.found.saved[progress.step] = checkpoint.encode(state)


def run(case: Case, saved: bytes = b"", every_steps: int = 0, shards: int = 1) -> Found:
    """Train from the beginning or from a checkpoint; with `every_steps`, replay
    steps."""
    torch.manual_seed(0)
    model = case.model()
    method = case.method(Classification())
    optimizers = {"optimizer": case.optimizer(model.parameters(), lr=0.05)}
    training = TrainingState(
        model, optimizers, method, torch.device("cpu"), strict=True
    )

    def batches(first: int) -> Iterator[Batch]:
        source = Source(case.data(), "train", 0)
        for step in itertools.count(first - 1):
            for ids in np.split(np.arange(6) + 6 * step % SAMPLES, shards):
                yield source[Position(step // 2, ids)]

    def held_out() -> list[Batch]:
        return [Source(case.data(), "validation", 0)[Position(0, np.arange(5))]]

    progress = Progress()
    if saved:
        progress = checkpoint.restore(training, checkpoint.decode(saved))
    trainer: Any = SimpleNamespace(
        cuda_graph=False,
        compile=False,
        log_every_steps=1,
        validate_every_epochs=1,
        checkpoint_every_steps=1,
        early_stopping_patience=None,
        replay_every_steps=every_steps,
        validate_every_steps=0,
        keep_checkpoint_every_steps=0,
    )
    plan = Plan(STEPS, 2, trainer, 1, lambda step: 1 - step / 10)
    notes = Notes(training)
    loop.fit(
        training,
        plan,
        progress,
        batches(progress.step + 1),
        held_out,
        notes,
        Shards(shards),
    )
    return notes.found
