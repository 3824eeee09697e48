"""The stages of a step: what each means, where to look if it differs, what explains it."""

from collections.abc import Collection
from dataclasses import dataclass, replace

# What is compared of one step, in causal order: of the step, then of evaluations after it.
COLUMNS = (
    *("sample_ids", "batch", "loss", "train_loss", "train_metric", "gradients"),
    *("train_learning_rate", "weights", "buffers", "optimizer"),
    *("validation_loss", "validation_metric", "test_loss", "test_metric"),
    *("final_weights", "final_predictions"),
)


@dataclass(frozen=True)
class Stage:
    """What a stage means; the keys (shell patterns) that explain it, likeliest first."""

    name: str
    phase: str
    look: str
    keys: tuple[str, ...]


_CODE = ("git.commit", "code:*.py", "code:*.c*")
_MACHINE = (
    *("trainer.device", "device", "trainer.precision", "trainer.compile", "determinism.name"),
    *("determinism.on_nondeterministic", "determinism.*", "flags.*", "versions.torch*"),
    *("gpu*", "cpu.*", "versions.*", "env.*", "platform"),
)
_DATA = (
    "data.name",
    "data_sha256*",
    "files_sha256.*",
    "seeds.split",
    "data.train*",
    "code:*/data/*.py",
)
_LOADING = "data.[!evt]*"  # the rest of data.*, without evaluation, validation and test
_MODEL = ("files_sha256.*", "model.name", "model.*", "code:*/models/*.py")
_TASK = ("method.*", "data.task*", "code:*/methods*.py", "code:*/methods/*.py", "code:*/tasks.py")
_PARTS = ("trainer.shards", "trainer.processes", "code:*/distributed/*", "code:*/training/sh*.py")
_STEP = (
    *("lr", "learning_rate"),  # as loops of one's own call it
    *(
        "optimizer.name",
        "optimizer.*",
        "schedule.*",
        "trainer.gradient_clip_norm",
        "trainer.max_epochs",
    ),
    *("trainer.max_steps", "code:*/training/*.py"),
)
_FORWARD = (
    "files_sha256.*",  # weights to start from
    *("seeds.init", "seeds.dropout", "seed", "determinism.seeding", *_MODEL, *_TASK, *_PARTS),
    *(*_CODE, *_MACHINE),
)
_UPDATE = (*_STEP, *_CODE, *_MACHINE)
_EVALUATION = (
    *("data.validation*", "data.test*", "seeds.split", "data_sha256*", "data.eval_batch_size"),
    *("code:*/tasks.py", "code:*/training/*.py", "method.*", "code:*/methods*.py"),
    *(*_CODE, *_MACHINE),
)

STAGES = {
    "sample_ids": Stage(
        "sample ids",
        "data order",
        "which samples the step took: the sampler, the split, the batch size",
        (
            *("seeds.order", "seed", "data.batch_size", "data.sampler*", "data.streams", *_DATA),
            *(*_PARTS, _LOADING, *_CODE, "versions.*"),
        ),
    ),
    "batch": Stage(
        "batch contents",
        "augmentation or loading",
        "how the same samples were loaded: the files, the transforms, draws inside __getitem__",
        (
            *(
                "seeds.augment",
                "seed",
                "data.augment*",
                "seeds.data",
                *_DATA,
                "determinism.seeding",
            ),
            *(
                "versions.torchvision",
                "versions.pillow",
                "versions.numpy",
                "env.PYTHONHASHSEED",
                _LOADING,
                *_CODE,
            ),
            "versions.*",
        ),
    ),
    "loss": Stage(
        "loss",
        "forward pass",
        "the model's forward pass on the same batch: its code, initial weights, dropout, kernels",
        _FORWARD,
    ),
    "gradients": Stage(
        "gradients",
        "backward pass",
        "the backward pass of the same loss: kernels that add in no fixed order, sums over shards",
        (
            *("determinism.on_nondeterministic", "determinism.cudnn.*", *_PARTS, *_TASK, *_MODEL),
            *(*_CODE, *_MACHINE),
        ),
    ),
    "weights": Stage(
        "weights",
        "optimizer",
        "the update from the same gradients: learning rate, clipping, the optimizer",
        _UPDATE,
    ),
    "buffers": Stage(
        "buffers",
        "forward pass",
        "what the model keeps besides weights, such as running averages of batch norm",
        (*_MODEL, *_CODE, *_MACHINE),
    ),
    "optimizer": Stage(
        "optimizer state",
        "optimizer",
        "the optimizer's moments and counters; weights that are equal now will diverge",
        _UPDATE,
    ),
    "train_loss": Stage(
        "training loss",
        "forward pass",
        "metrics.csv holds another loss: the forward pass, or what is averaged for the log",
        _FORWARD,
    ),
    "train_metric": Stage(
        "training metric",
        "forward pass",
        "the same loss, another metric: the task's metric, the forward pass",
        ("seeds.dropout", *_TASK, *_MODEL, *_CODE, *_MACHINE),
    ),
    "train_learning_rate": Stage(
        "learning rate",
        "optimizer",
        "the learning rate, and what changes it from step to step: a schedule, its length",
        (*_STEP, "data.batch_size", "data.train*", *_CODE),
    ),
    "validation_loss": Stage(
        "validation loss",
        "evaluation",
        "training is the same so far: the held-out samples, their batches, evaluation mode",
        _EVALUATION,
    ),
    "validation_metric": Stage(
        "validation metric",
        "evaluation",
        "the same loss on held-out samples, another metric: the task's metric",
        _EVALUATION,
    ),
    "test_loss": Stage(
        "test loss",
        "evaluation",
        "training is the same: the test samples, their batches, evaluation mode",
        _EVALUATION,
    ),
    "test_metric": Stage(
        "test metric",
        "evaluation",
        "the same loss on test samples, another metric: the task's metric",
        _EVALUATION,
    ),
    "final_weights": Stage(
        "final weights",
        "optimizer",
        "the weights at the end; with fingerprints, the step at which they diverged is named",
        _UPDATE,
    ),
    "final_predictions": Stage(
        "final predictions",
        "evaluation",
        "the same weights, other predictions for the test set: the samples, evaluation mode",
        _EVALUATION,
    ),
}


_RATE_OF = "learning_rate_"  # before the name of a parameter group, or of an optimizer


def stage_of(column: str) -> Stage:
    """Return the stage of a column; what a method logs by a name of its own is a metric."""
    if column in STAGES:
        return STAGES[column]
    like, name = STAGES[_like(column)], column.partition("_")[2]
    if name.startswith(_RATE_OF):
        return replace(like, name=f"{like.name} of {name.removeprefix(_RATE_OF)}")
    return replace(like, name=f"{like.name.split()[0]} {name}")


def in_order(columns: Collection[str]) -> tuple[str, ...]:
    """Return columns in causal order; those of methods follow the ones that they are like."""
    if all(column in COLUMNS for column in columns):  # in each step
        return tuple(column for column in COLUMNS if column in columns)
    known = [column for column in columns if _like(column) in COLUMNS]
    return tuple(sorted(known, key=lambda each: (COLUMNS.index(_like(each)), each)))


def _like(column: str) -> str:
    """Return the known column that has the same cause as one that a method has named."""
    if column in COLUMNS:
        return column
    phase, _, name = column.partition("_")
    is_rate = phase == "train" and name.startswith(_RATE_OF)
    return f"{phase}_{'learning_rate' if is_rate else 'metric'}"
