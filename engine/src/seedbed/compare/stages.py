"""The stages of a step, and where to look if one of them differs."""

from functools import cache
from typing import NamedTuple


class Stage(NamedTuple):
    """The name of a stage, the phase that produces it, and where to look if it
    differs."""

    name: str
    phase: str
    look: str


_HELD_OUT = (
    "the held-out samples, their batches, how the metric is computed, evaluation mode"
)
_SAMPLES = "the files of these samples, transforms, draws inside __getitem__"
# In causal order: the stages of a step, then the evaluations after it. The columns of
# metrics.csv are one stage per phase, except for learning rates.
STAGES = {
    "sample_ids": Stage(
        "sample ids", "data order", "the sampler, the split, the batch size"
    ),
    "batch": Stage(
        "batch contents",
        "augmentation or loading",
        "files, transforms, draws inside __getitem__",
    ),
    "loss": Stage(
        "loss", "forward pass", "the model's code, initial weights, dropout, kernels"
    ),
    "train": Stage(
        "training", "forward pass", "how a metric is computed, averages for the log"
    ),
    "gradients": Stage(
        "gradients", "backward pass", "kernels that add in no fixed order, shards"
    ),
    "train_learning_rate": Stage(
        "learning rate", "optimizer", "the schedule and its length"
    ),
    "weights": Stage(
        "weights", "optimizer", "learning rate, clipping, the optimizer's kernels"
    ),
    "buffers": Stage(
        "buffers", "forward pass, on_step_end", "averages, such as batch norm's"
    ),
    "optimizer": Stage(
        "optimizer state",
        "optimizer",
        "moments and counters; equal weights will diverge",
    ),
    "final_validation_samples": Stage("validation samples", "loading", _SAMPLES),
    "validation": Stage(
        "validation", "evaluation", f"training is the same so far: {_HELD_OUT}"
    ),
    "final_test_samples": Stage("test samples", "loading", _SAMPLES),
    "test": Stage("test", "evaluation", f"training is the same: {_HELD_OUT}"),
    "final_weights": Stage(
        "final weights",
        "optimizer",
        "fingerprints, which would name the first step that differs",
    ),
    "final_predictions": Stage(
        "final predictions",
        "evaluation",
        "the weights are the same: test samples, evaluation mode",
    ),
    "final_table": Stage(
        "test_predictions.csv",
        "evaluation",
        "how outputs become predictions and probabilities",
    ),
}
_ORDER = {name: number for number, name in enumerate(STAGES)}
_RATE = "train_learning_rate"  # a parameter group's or an optimizer's name may follow


def stage_of(column: str) -> Stage:
    """Return the stage of a column; for a logged value such as train_mae, its name is
    appended."""
    key = _key(column)
    stage = STAGES[key]
    value_name = column.removeprefix(key).removeprefix("_")
    between = " of " if key == _RATE else " "
    return (
        stage._replace(name=f"{stage.name}{between}{value_name}")
        if value_name
        else stage
    )


@cache  # nearly all steps have the same columns
def in_order(columns: frozenset[str]) -> tuple[str, ...]:
    """Return the known columns in causal order; in a phase, the loss, then metrics by
    name."""
    known = [column for column in columns if _key(column) in STAGES]
    order = {c: (_ORDER[_key(c)], not c.endswith("_loss"), c) for c in known}
    return tuple(sorted(known, key=order.__getitem__))


def _key(column: str) -> str:
    """Return the stage that a column belongs to."""
    if column in STAGES:
        return column
    return _RATE if column.startswith(_RATE) else column.partition("_")[0]
