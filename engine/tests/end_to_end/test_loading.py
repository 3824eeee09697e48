"""How data are loaded changes no bit of a training, also with a data set of the user's own."""

from pathlib import Path

import pytest

from seedbed import compare, record
from tests.running import command, trained

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
        return self.v2(self.v1(image)) * scale, index % 10
"""
YAML = """
name: noisy
kind: image
input_shape: [1, 28, 28]
outputs: 10
task: {name: classification}
batch_size: 16
eval_batch_size: 64
num_workers: 0
persistent_workers: true
prefetch_factor: 2
start_method: fork
train: {_target_: noisy_data.Noisy, samples: 96}
validation: {_target_: noisy_data.Noisy, samples: 64}
test: null
"""


def first_difference(a: Path, b: Path) -> str:
    """Return the stage where two finished runs part, or nothing."""
    both = compare.read(a), compare.read(b)
    assert [run.summary["status"] for run in both] == ["finished", "finished"]
    difference = compare.compare(*both).difference
    return "" if difference is None else difference.stage


@pytest.fixture(scope="module")
def users_own(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Write a user's data set and its configuration; return the overrides that choose it."""
    folder = tmp_path_factory.mktemp("users")
    (folder / "noisy_data.py").write_text(NOISY)
    (folder / "configs" / "data").mkdir(parents=True)
    (folder / "configs" / "data" / "noisy.yaml").write_text(YAML)
    return ("--config-dir", str(folder / "configs"), "data=noisy", "trainer.max_epochs=3",
            "determinism.threads=1")  # fmt: skip


def train(folder: Path, users_own: tuple[str, ...], *overrides: str) -> Path:
    words = ("train.py", *users_own, f"hydra.run.dir={folder}", *overrides)
    done = command(*words, environment={"PYTHONPATH": str(Path(users_own[1]).parent)})
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def run(users_own: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("noisy") / "run", users_own)


@pytest.mark.parametrize(
    "overrides",
    [
        ("data.num_workers=2", "trainer.validate_every_epochs=3", "trainer.log_every_steps=1"),
        pytest.param(
            ("data.num_workers=5", "data.persistent_workers=false", "data.prefetch_factor=1"),
            marks=pytest.mark.long,
        ),
        pytest.param(
            ("data.num_workers=1", "data.start_method=spawn", "trainer.validate_every_epochs=0"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_users_data_set_trains_to_the_same_bits(
    run: Path, users_own: tuple[str, ...], tmp_path: Path, overrides: tuple[str, ...]
) -> None:
    """Workers, their start and number, and how often there is validation change no bit."""
    assert first_difference(run, train(tmp_path / "run", users_own, *overrides)) == ""


@pytest.mark.long
def test_without_seeding_the_same_changes_do_change_bits(
    users_own: tuple[str, ...], tmp_path: Path
) -> None:
    """Twin: it is the keying of each sample that makes loading repeat."""
    unseeded = ("determinism.seeding=false", "trainer.max_steps=2")
    runs = [
        train(tmp_path / workers, users_own, *unseeded, f"data.num_workers={workers}")
        for workers in ("0", "2")
    ]
    assert first_difference(*runs) == "batch"


@pytest.mark.long
def test_a_built_in_data_set_trains_to_the_same_bits(tmp_path: Path) -> None:
    """The default experiment does not depend on its workers either, to its last prediction."""
    here = trained(tmp_path / "here")
    words = ("data.num_workers=3", "data.persistent_workers=false", "data.prefetch_factor=5")
    there = trained(tmp_path / "there", *words)
    assert first_difference(here, there) == ""
    for name in ("metrics.csv", "fingerprints.csv", "test_predictions.csv"):
        assert (here / name).read_bytes() == (there / name).read_bytes()
    assert record.read_config(there).data.num_workers == 3
