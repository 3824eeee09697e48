"""Training in several ways that must not matter: few samples of a data set, and what differs."""

from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from seedbed import compare, record

# What `compare` does not read, because a training computes it from what it reads.
TABLES = ("metrics.csv", "test_predictions.csv")
RESULTS = ("steps", "metrics", "objective", "fingerprints")


class Few(Dataset[Any]):
    """The first samples of a data set, which is otherwise as it is.

    Attributes:
        dataset, indices: the whole, and which of its samples these are: samplers look there.
    """

    def __init__(self, dataset: Any, samples: int) -> None:
        self.dataset, self.indices = dataset, range(min(samples, len(dataset)))
        if hasattr(dataset, "fetch"):
            self.fetch = dataset.fetch
        self.sha256 = getattr(dataset, "sha256", {})

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def differences(a: Path, b: Path) -> list[str]:
    """Name everything in which two finished runs do not have the same bits."""
    summaries = [record.read_summary(run) for run in (a, b)]
    for summary in summaries:
        if summary["status"] != "finished":
            return [f"{summary['status']}: {summary['error']}"]
    first = compare.compare(compare.read(a), compare.read(b)).difference
    found = [f"step {first.step}: {first.stage}"] if first else []
    found += [name for name in TABLES if _bytes(a / name) != _bytes(b / name)]
    left, right = summaries
    return found + [f"summary: {key}" for key in RESULTS if left[key] != right[key]]


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
