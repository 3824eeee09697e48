"""SHA-256 of what checkpoints hold: unlike fingerprints, nobody can make other weights
of the same.

It covers names, dtypes, shapes and bytes of tensors, and the `repr` of other values, in
the order of the names; not the file, whose bytes depend on PyTorch's version.
"""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from seedbed.words import as_words

WEIGHTS = "weights_sha256"  # the entry of checkpoints
# What a checkpoint says beside the state of training: where, when and by which machine
# it was made.
_OTHERS = (
    "format_version",
    "origin",
    "epoch_sums",
    "model",
    "buffers",
    "devices",
    WEIGHTS,
)
_OTHER_PROGRESS = (
    *("seconds", "kept_step", "samples_hash", "samples_before", "validation_set"),
    "best_sha256",  # best.pt is compared by itself
)


def of_weights(state: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the weights and buffers of a checkpoint, as 64 hexadecimal
    digits."""
    return of({"model": state["model"], "buffers": state["buffers"]})


def of_training(state: Mapping[str, Any], weights: str) -> str:
    """Return the SHA-256 of all that a checkpoint holds of the training, given that of
    its weights.

    Equal trainings have equal ones: times, origin and devices are left out.
    """
    known: dict[str, Any] = {"weights": weights}
    for name, entry in state.items():
        if name not in _OTHERS:
            left_out = _OTHER_PROGRESS if name == "progress" else _OTHERS
            is_mapping = isinstance(entry, Mapping)
            described = (
                {k: v for k, v in entry.items() if k not in left_out}
                if is_mapping
                else entry
            )
            known[name] = described
    return of(known)


def of(nest: Any) -> str:
    """Return the SHA-256 of nested mappings, lists and tuples of tensors and other
    values."""
    digest = hashlib.sha256()
    for path, leaf in _leaves(nest, ""):
        if not isinstance(leaf, Tensor):
            digest.update(f"{path} {leaf!r}\n".encode(errors="backslashreplace"))
            continue
        shape = "nested" if leaf.is_nested else tuple(leaf.shape)
        digest.update(
            f"{path} {leaf.dtype} {shape}\n".encode(errors="backslashreplace")
        )
        # of tensors on a GPU, one at a time is on the CPU
        words = as_words(leaf.detach().cpu())
        digest.update(words.contiguous().reshape(-1).numpy().data)
    return digest.hexdigest()


def _leaves(nest: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf; an empty mapping or list is one."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(nest, Mapping):
        pairs = sorted(nest.items(), key=lambda pair: repr(pair[0]))
    elif isinstance(nest, list | tuple):
        pairs = list(enumerate(nest))
    for key, value in pairs:
        yield from _leaves(value, f"{path}/{key!r}")
    if not pairs:
        yield path, nest
