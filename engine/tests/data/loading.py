"""What tests of loading share: a preset, fingerprints of batches, settings of a data set."""

from collections.abc import Iterable
from typing import Any

from seedbed import fingerprint
from seedbed.config import Settings
from seedbed.data.source import Batch
from seedbed.data.tensors import tensors_of
from tests.running import typed

# A preset in which the workers need not import the compiler, which takes seconds.
PRESET: dict[str, Any] = {"on_nondeterministic": "allow", "fill_uninitialized_memory": False}


def hashes(batches: Iterable[Batch]) -> list[int]:
    """Return the fingerprint of each batch: ids, inputs and targets."""
    return [int(fingerprint.of_tensors(tensors_of(batch))) for batch in batches]


def settings(**data: Any) -> Settings:
    """Return settings of a data set, whose batches have four samples."""
    return typed(seed=0, data={"batch_size": 4, "test": None, **data})
