"""Names that every room shares: streams of randomness, stages of a step, splits, keys."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

# Of randomness; `seeds.<stream>` sets the seed of one alone.
STREAMS = ("init", "order", "augment", "dropout", "data", "split")
# Where a shard's number stands otherwise in a position of the dropout stream: none is used twice.
UPDATE, STEP_END, COMPUTE, TRAIN_END, CALLBACK, PLAN = range(-1, -7, -1)
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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean X` for the known name most like an unknown one; empty if none is.

    Of dotted names, those of the same section are compared by their last parts, the others as a
    whole. A name without a section, such as lr, may be the last part of a dotted one.
    """
    known = set(known)
    if name in known:
        return ""
    section, _, last = name.rpartition(".")
    parts = {each: each.rpartition(".") for each in sorted(known)}
    same = {end: each for each, (start, _, end) in parts.items() if start == section}
    close = [same[end] for end in difflib.get_close_matches(last, same, n=1, cutoff=0.7)]
    close += difflib.get_close_matches(name, parts, n=1, cutoff=0.85)
    close += [each for each, (_, _, end) in parts.items() if end == name]
    return f"; did you mean {close[0]}" if close else ""
