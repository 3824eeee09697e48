"""Names shared by all packages: streams of randomness, stages of a step, splits; dotted
keys."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

# Streams of randomness; `seeds.<stream>` sets the seed of one alone.
STREAMS = ("init", "order", "augment", "dropout", "data", "split")
# Used in place of a shard's number in positions of the dropout stream, so that none is
# used twice.
UPDATE, STEP_END, COMPUTE, TRAIN_END, CALLBACK, PLAN, SWAP, EPOCH = range(-1, -9, -1)
# Stages of a training step, in causal order: the columns of fingerprints.csv.
STAGES = ("sample_ids", "batch", "loss", "gradients", "weights", "buffers", "optimizer")
# Splits of a data set; samples of different splits have different randomness.
SPLITS = ("train", "validation", "test")
# Arguments and attributes of a data set that change samples in training, or in each
# split.
TRANSFORMS = ("transform", "transforms", "augment")


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings, and of lists of mappings, by dotted
    path."""
    if isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        tree = {str(number): item for number, item in enumerate(tree)}
    if not isinstance(tree, Mapping):
        return {prefix.removesuffix("."): tree}
    return {
        path: leaf
        for name, value in tree.items()
        for path, leaf in flatten(value, f"{prefix}{name}.").items()
    }


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X` with the known name closest to an unknown one; empty if
    none is.

    A name without a section, such as lr, may match the last part of a dotted one; three
    letters or more, such as acc, may begin one.
    """
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.8)
    close += [
        n
        for n in names[::-1]
        if get_close_matches(name, [n.rpartition(".")[2]], 1, 0.8)
    ]
    close += [n for n in names if len(name) >= 3 and n.startswith(name)]
    return f"; did you mean {close[0]}" if close and name not in names else ""
