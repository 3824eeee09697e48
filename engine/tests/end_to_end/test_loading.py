"""How data are loaded changes no bit of a training, also with a data set of the user's own."""

from pathlib import Path

import pytest

from tests import tiny
from tests.running import QUICK, train, trained
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
WORDS = (*QUICK, "seed=0", "trainer.max_steps=18",
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
    done = train(folder, *WORDS, *overrides, environment={"PYTHONPATH": str(folder.parent)})
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.num_workers=2",),
        pytest.param(
            ("data.num_workers=5", "data.persistent_workers=false", "data.prefetch_factor=1"),
            marks=pytest.mark.long,
        ),
        pytest.param(("data.num_workers=1", "data.start_method=spawn"), marks=pytest.mark.long),
    ],
)
def test_a_users_data_set_trains_to_the_same_bits(place: Path, overrides: tuple[str, ...]) -> None:
    """Workers, their start and number change no bit."""
    run = noisy(place / f"run{hash(overrides)}", *overrides)
    assert differences(place / "run", run) == []


@pytest.mark.long
def test_without_seeding_the_same_changes_do_change_bits(place: Path) -> None:
    """Twin: it is the keying of each sample that makes loading repeat."""
    words = ("determinism.seeding=false", "trainer.max_steps=2")
    here, there = (noisy(place / f"unseeded{n}", *words, f"data.num_workers={n}") for n in (0, 2))
    assert "step 1: batch" in differences(here, there)


@pytest.mark.long
def test_a_data_set_of_whole_batches_trains_to_the_same_bits(
    quick_run: Path, tmp_path: Path
) -> None:
    """The default one does not depend on its workers either, to its last prediction."""
    words = ("data.num_workers=3", "data.persistent_workers=false", "data.prefetch_factor=5")
    assert differences(quick_run, trained(tmp_path / "run", *words)) == []
