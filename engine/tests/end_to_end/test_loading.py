"""How data are loaded changes no bit of a training, also with a data set of the user's own."""

from pathlib import Path

import pytest

from tests import tiny
from tests.running import trained
from tests.ways import differences

# A data set such as users write: it draws from every global generator, and transforms images by
# torchvision's transforms of both versions.
NOISY = """
import random
import numpy as np
import torch
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

class Noisy(Dataset):
    def __init__(self, samples):
        self.samples = samples
        self.v1 = v1.Compose([v1.RandomRotation(20), v1.RandomErasing(0.5)])
        self.v2 = v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianNoise()])

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        image = torch.linspace(-1, 1, 28 * 28).view(1, 28, 28) * (1 + index % 10)
        scale = random.random() + np.random.rand() + torch.rand(())
        return self.v2(self.v1(image)).mean((0, 1)) * scale, index % 3
"""
SETS = {"train": 48, "validation": 24, "test": 24}
DATA = tiny.DATA | {
    split: {"_target_": "noisy_data.Noisy", "samples": samples} for split, samples in SETS.items()
}
WORDS = ("seed=0", "trainer.max_steps=18",
         *tiny.overrides(tiny.DENSE | {"features": 28}, DATA))  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a user's data set, and train on it."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "noisy_data.py").write_text(NOISY)
    noisy(folder / "run")
    return folder


def noisy(folder: Path, *overrides: str) -> Path:
    """Train on the data set that lies beside a folder."""
    return trained(folder, *WORDS, *overrides, environment={"PYTHONPATH": str(folder.parent)})


def test_a_users_data_set_trains_to_the_same_bits_with_workers(place: Path) -> None:
    """The ways of starting them are those of tests/data."""
    assert differences(place / "run", noisy(place / "workers", "data.num_workers=2")) == []


@pytest.mark.long
def test_without_seeding_workers_do_change_bits(place: Path) -> None:
    """Negative control: it is the seeding of each sample that makes loading repeat."""
    words = ("determinism.seeding=false", "trainer.max_steps=2")
    here, there = (noisy(place / f"unseeded{n}", *words, f"data.num_workers={n}") for n in (0, 2))
    assert "step 1: batch" in differences(here, there)
