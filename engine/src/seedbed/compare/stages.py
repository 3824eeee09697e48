"""The stages of a step: what each means, and where to look if it differs."""

from collections.abc import Collection
from typing import NamedTuple


class Stage(NamedTuple):
    """What a stage is called, the phase of a step that gives it, and where to look."""

    name: str
    phase: str
    look: str


_HELD_OUT = "the held-out samples, their batches, how the metric is computed, evaluation mode"
# In causal order: what a step gives, then evaluations after it. The columns of metrics.csv are one
# stage for each phase, but for learning rates.
STAGES = {
    "sample_ids": Stage(
        "sample ids", "data order", "which samples the step took: sampler, split, batch size"
    ),
    "batch": Stage(
        *("batch contents", "augmentation or loading"),
        "how the same samples were loaded: the files, the transforms, draws inside __getitem__",
    ),
    "loss": Stage(
        *("loss", "forward pass"),
        "the model's forward pass on the same batch: its code, initial weights, dropout, kernels",
    ),
    "train": Stage(
        *("training", "forward pass"),
        "metrics.csv: the forward pass, how a metric is computed, what is averaged for the log",
    ),
    "gradients": Stage(
        *("gradients", "backward pass"),
        "the backward pass of the same loss: kernels that add in no fixed order, sums over shards",
    ),
    "train_learning_rate": Stage(
        *("learning rate", "optimizer"),
        "the learning rate, and what changes it from step to step: a schedule, its length",
    ),
    "weights": Stage(
        *("weights", "optimizer"),
        "the update from the same gradients: learning rate, clipping, the optimizer",
    ),
    "buffers": Stage(
        *("buffers", "forward pass"),
        "what the model keeps besides weights, such as running averages of batch norm",
    ),
    "optimizer": Stage(
        *("optimizer state", "optimizer"),
        "the optimizer's moments and counters; weights that are equal now will diverge",
    ),
    "validation": Stage("validation", "evaluation", f"training is the same so far: {_HELD_OUT}"),
    "test": Stage("test", "evaluation", f"training is the same: {_HELD_OUT}"),
    "final_weights": Stage(
        *("final weights", "optimizer"),
        "the weights at the end; with fingerprints, the step at which they diverged is named",
    ),
    "final_predictions": Stage(
        *("final predictions", "evaluation"),
        "the same weights, other predictions for the test set: the samples, evaluation mode",
    ),
}
_ORDER = {name: number for number, name in enumerate(STAGES)}
_RATE = "train_learning_rate"  # with the name of a parameter group, or of an optimizer, behind it


def stage_of(column: str) -> Stage:
    """Return the stage of a column; of what is logged, such as train_mae, with its own name."""
    stage = STAGES[_key(column)]
    if column in STAGES:
        return stage
    if column.startswith(_RATE):
        return stage._replace(name=f"{stage.name} of {column.removeprefix(f'{_RATE}_')}")
    return stage._replace(name=f"{stage.name} {column.partition('_')[2]}")


def in_order(columns: Collection[str]) -> tuple[str, ...]:
    """Return columns in causal order; of a phase, the loss first and metrics sorted by name."""
    if all(column in STAGES for column in columns):  # in each step
        return tuple(column for column in STAGES if column in columns)
    known = [column for column in columns if _key(column) in STAGES]
    order = {c: (_ORDER[_key(c)], not c.endswith("_loss"), c) for c in known}
    return tuple(sorted(known, key=order.__getitem__))


def _key(column: str) -> str:
    """Return the stage that a column belongs to."""
    if column in STAGES:
        return column
    return _RATE if column.startswith(_RATE) else column.partition("_")[0]
