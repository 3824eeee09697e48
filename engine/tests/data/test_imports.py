"""What a module of the project draws while it is imported is the same everywhere."""

from pathlib import Path

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
# Each evaluation starts workers anew.
WORDS = (*tiny.overrides(MODEL, DATA), "trainer.max_steps=2", "trainer.rehearse_resume=false")


def test_loader_workers_have_the_table_of_the_training_process(tmp_path: Path) -> None:
    """Although they import the module anew."""
    (tmp_path / "drawing_module.py").write_text(MODULE)
    alone, worker = (
        record.read_fingerprints(
            trained(tmp_path / name, *WORDS, *words, environment={"PYTHONPATH": str(tmp_path)})
        )
        for name, words in (
            ("alone", ()),
            ("worker", ("data.num_workers=1", "data.start_method=spawn")),
        )
    )
    assert worker == alone
