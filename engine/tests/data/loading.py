"""What tests of loading share: a preset, fingerprints of batches, settings of a data set."""

from collections.abc import Iterable
from typing import Any

from seedbed import fingerprint
from seedbed.data.source import Batch
from seedbed.data.tensors import tensors_of

# A preset in which the workers need not import the compiler, which takes seconds.
PRESET: dict[str, Any] = {"on_nondeterministic": "allow", "fill_uninitialized_memory": False}


def hashes(batches: Iterable[Batch]) -> list[int]:
    """Return the fingerprint of each batch: ids, inputs and targets."""
    return [int(fingerprint.of_tensors(tensors_of(batch))) for batch in batches]


def settings(**data: Any) -> dict[str, Any]:
    """Return the sections that data sets and orders are built of."""
    return {
        "data": {"batch_size": 4, "test": None, **data},
        "seeds": {"order": 0, "augment": 0, "data": 0},
        "trainer": {"shards": 1},
        "determinism": {"seeding": True},
    }
