"""Replaying a step: it is taken twice from the same state, and its bits must be the
same.

This finds kernels that do not repeat, draws that no seed controls, and hardware that
errs (silent data corruption), at any time of a run. What a checkpoint lacks is found by
the rehearsal.
"""

from collections.abc import Sequence

import torch

from seedbed import fingerprint, record
from seedbed.errors import InputError
from seedbed.names import STAGES
from seedbed.pipeline.source import Batch
from seedbed.pipeline.tensors import map_tensors
from seedbed.training import checkpoint
from seedbed.training.callbacks import Callbacks
from seedbed.training.shards import Shards
from seedbed.training.state import Progress, StepResult, TrainingState
from seedbed.training.step import train_step


def take_twice(
    training: TrainingState,
    batches: Sequence[Batch],
    step: int,
    shards: Shards,
    with_values: bool,
) -> StepResult:
    """Take a step, restore the state before it, and take it again, with callbacks and
    CUDA graphs this time."""
    with checkpoint.fitting("checkpoint"):
        saved = checkpoint.encode(checkpoint.capture(training, Progress(step - 1)))
    # A model may change its inputs in place.
    copies = [
        Batch(each.ids, *map_tensors(torch.Tensor.clone, each[1:])) for each in batches
    ]
    hasher = fingerprint.Hasher(training.device)
    callbacks = training.callbacks
    graphs = training.graphs
    training.callbacks = Callbacks()
    training.graphs = None
    first = train_step(training, copies, step, shards, with_values, hasher)
    with checkpoint.fitting("checkpoint"):
        checkpoint.restore(training, checkpoint.decode(saved, training.device))
    training.callbacks = callbacks
    training.graphs = graphs
    shards.begin(training, step - 1)
    second = train_step(training, batches, step, shards, with_values, hasher)
    assert first.stages is not None
    assert second.stages is not None
    a, b = fingerprint.rows([(step, first.stages), (step, second.stages)])
    of_processes = shards.gather(lambda: record.differing(a, b, STAGES))
    stages = {stage for differing in of_processes for stage in differing}
    if stages:
        first_stage = min(stages, key=STAGES.index)
        raise InputError(
            f"trainer.replay_every_steps: step {step} was taken twice from one state"
            f" and differs ({first_stage}); keep what lasts in buffers of the model,"
            " draw from the global generators, and look for a nondeterministic kernel"
            " or faulty hardware"
        )
    return second
