"""What a module of the project draws while it is imported is the same everywhere."""

from pathlib import Path

import pytest

from seedbed import record
from tests import tiny
from tests.running import trained

MODULE = """
import torch
from torch.utils.data import Dataset

TABLE = torch.randn(64, 2)


class Rows(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return TABLE[index], index % 2
"""
DATA = tiny.DATA | {
    split: {"_target_": "drawing_module.Rows"} for split in ("train", "validation", "test")
}
MODEL = {"name": "dense", "_target_": "torch.nn.LazyLinear", "out_features": 2}
WORDS = tiny.overrides(MODEL, DATA)


@pytest.mark.parametrize(
    "method",
    [
        "spawn",
        pytest.param("fork", marks=pytest.mark.long),
        pytest.param("forkserver", marks=pytest.mark.long),
    ],
)
def test_loader_workers_have_the_table_of_the_training_process(method: str, tmp_path: Path) -> None:
    """By each start method; negative control: another seed gives another table."""
    (tmp_path / "drawing_module.py").write_text(MODULE)
    environment = {"PYTHONPATH": str(tmp_path)}

    def batches(name: str, *words: str) -> list[str]:
        run = trained(tmp_path / name, *WORDS, *words, environment=environment)
        return [row["batch"] for row in record.read_fingerprints(run)]

    alone = batches("alone")
    workers = ("data.num_workers=2", f"data.start_method={method}")
    assert batches("workers", *workers) == alone
    assert batches("other", "seeds.data=1") != alone
