"""Names that every room shares: streams of randomness, stages of a step, splits, keys."""

from collections.abc import Mapping
from typing import Any

# Of randomness; `seeds.<stream>` sets the seed of one alone.
STREAMS = ("init", "order", "augment", "dropout", "data", "split")
# Where a shard's number stands otherwise in a position of the dropout stream: none is used twice.
UPDATE, STEP_END, COMPUTE, TRAIN_END, CALLBACK = range(-1, -6, -1)
# Of a training step, in causal order: the columns of fingerprints.csv.
STAGES = ("sample_ids", "batch", "loss", "gradients", "weights", "buffers", "optimizer")
# Of a data set: samples of different splits have different randomness.
SPLITS = ("train", "validation", "test")


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings, and of lists of mappings, by dotted path."""
    if isinstance(tree, list) and any(isinstance(item, Mapping) for item in tree):
        tree = {str(number): item for number, item in enumerate(tree)}
    if not isinstance(tree, Mapping):
        return {prefix.removesuffix("."): tree}
    return {
        path: leaf
        for name, value in tree.items()
        for path, leaf in flatten(value, f"{prefix}{name}.").items()
    }
