"""The comparison that all tests use: everything in which two finished runs differ."""

from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path

from seedbed import record, testing
from seedbed.record import chain
from seedbed.training import checkpoint

# Results that `compare` skips, wholly or in part, because they follow from those that
# it reads.
TABLES = ("metrics.csv", "fingerprints.csv", "test_predictions.csv")
CHECKPOINTS = ("last.pt", "best.pt")
RESULTS = ("steps", "metrics", "last_metrics", "objective", "fingerprints")
# The parts of a checkpoint about where and when it was written; the others are results.
_OF_THE_RUN = ("origin", "progress")


def differences(a: Path, b: Path) -> list[str]:
    """Return the names of all results in which two finished runs differ by any bit."""
    first = testing.difference(a, b)
    if first is not None and not first.startswith("step "):
        return [first]
    found = [first] if first else []
    found += [name for name in TABLES if _bytes(a / name) != _bytes(b / name)]
    for name in CHECKPOINTS:
        left, right = (_state(run / "checkpoints" / name) for run in (a, b))
        parts = {
            key for key in left.keys() | right.keys() if left.get(key) != right.get(key)
        }
        found += [f"{name}: {part}" for part in sorted(parts)]
    left, right = (chain.checkpoints(run) for run in (a, b))
    if any(
        left[step][name] != right[step][name]
        for step in left.keys() & right.keys()
        for name in ("weights", "state")
    ):
        found.append(chain.FILE)
    left, right = (record.read_summary(run) for run in (a, b))
    return found + [f"summary: {key}" for key in RESULTS if left[key] != right[key]]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _state(path: Path) -> dict[str, Any]:
    """Return the path and the bits of each leaf of a checkpoint, by part."""
    state = checkpoint.load(path) if path.exists() else {}
    return {
        part: [
            (keystr(place), _bits(leaf))
            for place, leaf in tree_flatten_with_path(value)[0]
        ]
        for part, value in state.items()
        if part not in _OF_THE_RUN
    }


def _bits(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        leaf = leaf if leaf.layout is torch.strided else leaf.to_dense()
        values = leaf.cpu().contiguous().view(-1).view(torch.uint8)
        return leaf.dtype, leaf.shape, values.numpy().tobytes()
    return leaf


def require_same_bits(folder: Path) -> None:
    """Assert that runs of `testing.train_in_ways` are equal; negative control: another
    seed."""
    for way in ("again", "two_workers", "resumed"):
        assert differences(folder / "first", folder / way) == [], way
        assert bool(record.read_summary(folder / way)["resumes"]) is (way == "resumed")
    assert differences(folder / "first", folder / "other_seed") != []
