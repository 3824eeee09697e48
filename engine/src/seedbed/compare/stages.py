"""The stages of a step: what each means, and where to look if it differs."""

from collections.abc import Collection
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Stage:
    """What a stage is called, the phase of a step that gives it, and where to look."""

    name: str
    phase: str
    look: str


# In causal order: what a step gives, then evaluations after it. `metric` stands for any name.
STAGES = {
    "sample_ids": Stage(
        *("sample ids", "data order"),
        "which samples the step took: the sampler, the split, the batch size",
    ),
    "batch": Stage(
        *("batch contents", "augmentation or loading"),
        "how the same samples were loaded: the files, the transforms, draws inside __getitem__",
    ),
    "loss": Stage(
        *("loss", "forward pass"),
        "the model's forward pass on the same batch: its code, initial weights, dropout, kernels",
    ),
    "train_loss": Stage(
        *("training loss", "forward pass"),
        "metrics.csv holds another loss: the forward pass, or what is averaged for the log",
    ),
    "train_metric": Stage(
        *("training metric", "forward pass"),
        "the same loss, another metric: how it is computed, the forward pass",
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
    "validation_loss": Stage(
        *("validation loss", "evaluation"),
        "training is the same so far: the held-out samples, their batches, evaluation mode",
    ),
    "validation_metric": Stage(
        *("validation metric", "evaluation"),
        "training is the same so far: the held-out samples, how the metric is computed",
    ),
    "test_loss": Stage(
        *("test loss", "evaluation"),
        "training is the same: the test samples, their batches, evaluation mode",
    ),
    "test_metric": Stage(
        *("test metric", "evaluation"),
        "training is the same: the test samples, how the metric is computed",
    ),
    "final_weights": Stage(
        *("final weights", "optimizer"),
        "the weights at the end; with fingerprints, the step at which they diverged is named",
    ),
    "final_predictions": Stage(
        *("final predictions", "evaluation"),
        "the same weights, other predictions for the test set: the samples, evaluation mode",
    ),
}
COLUMNS = tuple(STAGES)
_RATE_OF = "learning_rate_"  # before the name of a parameter group, or of an optimizer


def stage_of(column: str) -> Stage:
    """Return the stage of a column; a name that is logged, such as train_mae, is a metric."""
    if column in STAGES:
        return STAGES[column]
    like, name = STAGES[_like(column)], column.partition("_")[2]
    if name.startswith(_RATE_OF):
        return replace(like, name=f"{like.name} of {name.removeprefix(_RATE_OF)}")
    return replace(like, name=f"{like.name.split()[0]} {name}")


def in_order(columns: Collection[str]) -> tuple[str, ...]:
    """Return columns in causal order, metrics of a phase sorted by name."""
    if all(column in STAGES for column in columns):  # in each step
        return tuple(column for column in COLUMNS if column in columns)
    known = [column for column in columns if _like(column) in STAGES]
    return tuple(sorted(known, key=lambda each: (COLUMNS.index(_like(each)), each)))


def _like(column: str) -> str:
    """Return the column of STAGES that has the same cause."""
    if column in STAGES:
        return column
    phase, _, name = column.partition("_")
    is_rate = phase == "train" and name.startswith(_RATE_OF)
    return f"{phase}_{'learning_rate' if is_rate else 'metric'}"
