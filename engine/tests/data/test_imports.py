"""What a module of the project draws while it is imported is the same everywhere."""

from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import record
from tests import tiny
from tests.running import trained

TABLE = torch.randn(64, 2)


class Rows(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return TABLE[index], index % 2


DATA = tiny.DATA | {
    split: {"_target_": f"{__name__}.Rows"} for split in ("train", "validation", "test")
}
MODEL = {"name": "dense", "_target_": "torch.nn.LazyLinear", "out_features": 2}
# Each evaluation starts workers anew.
WORDS = (*tiny.overrides(MODEL, DATA), "trainer.max_steps=2", "trainer.rehearse_resume=false")


def test_loader_workers_have_the_table_of_the_training_process(tmp_path: Path) -> None:
    """Although they import the module anew."""
    spawned = ("data.num_workers=1", "data.start_method=spawn")
    alone, worker = trained(tmp_path / "a", *WORDS), trained(tmp_path / "b", *WORDS, *spawned)
    assert record.read_fingerprints(worker) == record.read_fingerprints(alone)
